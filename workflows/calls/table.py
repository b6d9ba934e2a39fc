"""Every call of an activity that workflows make: one line each says where it runs and how long it is waited for.

`from ..calls import table as calls`, then `await calls.make_batch(request, summary="batch 3")`. The numbers are in
`settings`. Promise: a call that may take longer than `settings.SHORT` has a heartbeat, so that a process that dies in
it is noticed within seconds (L11); a test holds it.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...activities import signatures
    from ...schemas.ids import AGENT_QUEUE, CPU_QUEUE, TRAINER_QUEUE
    from . import settings
    from .call import Call, LocalCall, Request, Result
    from .settings import HEARTBEAT, LEASE, SHORT, STORE_PATIENCE, TRAIN_HEARTBEAT, TRAIN_PATIENCE, WEIGHTS_PATIENCE

# --- data, rewards and environments: the cpu worker -----------------------------------------------------------------

admit_run: Final = Call(
    signatures.admit_run,
    patience=None,
    start_to_close=settings.ADMISSION,
    heartbeat=TRAIN_HEARTBEAT,
    retry=settings.ADMIT_ATTEMPTS,
    queue=CPU_QUEUE,
)
restore_run: Final = Call(
    signatures.restore_run,
    patience=None,
    start_to_close=settings.ADMISSION,
    heartbeat=TRAIN_HEARTBEAT,
    retry=settings.ADMIT_ATTEMPTS,
    queue=CPU_QUEUE,
)
draw_groups: Final = Call(signatures.draw_groups, STORE_PATIENCE, LEASE, heartbeat=HEARTBEAT, queue=CPU_QUEUE)
draw_validation: Final = Call(signatures.draw_validation, STORE_PATIENCE, LEASE, heartbeat=HEARTBEAT, queue=CPU_QUEUE)
score: Final = Call(
    signatures.score,
    patience=None,  # what is left of the group's lifetime
    heartbeat=TRAIN_HEARTBEAT,
    retry=settings.SCORE_ATTEMPTS,
    queue=CPU_QUEUE,
)
"""Its callers give `start_to_close`: it depends on the reward's own timeout."""
step_environment: Final = Call(
    signatures.step_environment,
    patience=None,  # what is left of the group's lifetime
    heartbeat=TRAIN_HEARTBEAT,
    retry=settings.SCORE_ATTEMPTS,
    queue=CPU_QUEUE,
)
"""Its callers give `start_to_close`: it depends on the environment's own timeout."""
close_environments: Final = Call(
    signatures.close_environments,
    LEASE,
    heartbeat=HEARTBEAT,
    pickup=SHORT,  # a process that is gone keeps none
    retry=settings.ONCE,
    living=False,
)

# --- agents from outside: beside the cpu worker ----------------------------------------------------------------------

run_agent: Final = Call(
    signatures.run_agent,
    patience=None,  # what is left of the group's lifetime; the run's limit for an agent is kept inside
    heartbeat=TRAIN_HEARTBEAT,
    retry=settings.SCORE_ATTEMPTS,
    queue=AGENT_QUEUE,
)

# --- store and coordinator: the orchestrator -------------------------------------------------------------------------

plan_dispatch: Final = Call(signatures.plan_dispatch, STORE_PATIENCE, SHORT)
route: Final = LocalCall(signatures.route, SHORT)
sync_due: Final = Call(signatures.sync_due, STORE_PATIENCE, heartbeat=HEARTBEAT, living=False)
"""Its caller gives the patience: the configuration says how long a sync may wait."""
record_session: Final = Call(signatures.record_session, STORE_PATIENCE, SHORT)
start_groups: Final = Call(signatures.start_groups, STORE_PATIENCE, LEASE, heartbeat=HEARTBEAT, seen_to_its_end=True)
"""A run that ends meanwhile cancels the groups that have been started, and none may follow."""
cancel_groups: Final = Call(signatures.cancel_groups, STORE_PATIENCE, LEASE, heartbeat=HEARTBEAT)
collect_reports: Final = Call(signatures.collect_reports, STORE_PATIENCE, LEASE, heartbeat=HEARTBEAT)
look_at_run: Final = Call(signatures.look_at_run, STORE_PATIENCE, SHORT)
tell_run: Final = LocalCall(signatures.tell_run, settings.SWEEP, SHORT)
"""It may have to wait for its turn among many held route calls."""
make_batch: Final = Call(signatures.make_batch, STORE_PATIENCE, settings.BATCH, heartbeat=HEARTBEAT)
record_step: Final = Call(signatures.record_step, STORE_PATIENCE, SHORT)
record_evaluation: Final = Call(signatures.record_evaluation, STORE_PATIENCE, SHORT)
record_run: Final = Call(signatures.record_run, STORE_PATIENCE, SHORT)
reopen_run: Final = Call(signatures.reopen_run, STORE_PATIENCE, SHORT)

# --- one instance's host: `.on(rollout_queue(instance))` -------------------------------------------------------------

start_engine: Final = Call(signatures.start_engine, WEIGHTS_PATIENCE, heartbeat=HEARTBEAT, living=False)
"""Its caller gives the patience: the configuration says how long a start may take."""
hold_engine: Final = Call(signatures.hold_engine, LEASE, heartbeat=HEARTBEAT, retry=settings.ONCE, living=False)
generate: Final = Call(
    signatures.generate,
    patience=None,  # what is left of the group's lifetime
    pickup=settings.POLL_START,
    heartbeat=HEARTBEAT,
    retry=settings.ONCE,
    living=False,
)
pause: Final = Call(signatures.pause, WEIGHTS_PATIENCE, heartbeat=HEARTBEAT, living=False)
pull_weights: Final = Call(
    signatures.pull_weights, WEIGHTS_PATIENCE, heartbeat=HEARTBEAT, retry=settings.PULL_ATTEMPTS, living=False
)
resume: Final = Call(signatures.resume, WEIGHTS_PATIENCE, heartbeat=HEARTBEAT, living=False)
release_engine: Final = Call(signatures.release_engine, LEASE, heartbeat=HEARTBEAT, living=False)

# --- the trainer: through `training.stage`, but for the last ---------------------------------------------------------


def _stage(activity: Callable[[Request], Awaitable[Result]]) -> Call[Request, Result]:
    return Call(activity, TRAIN_PATIENCE, heartbeat=TRAIN_HEARTBEAT, retry=settings.STAGE, queue=TRAINER_QUEUE)


open_trainer: Final = _stage(signatures.open_trainer)
compute_log_probs: Final = _stage(signatures.compute_log_probs)
compute_advantages: Final = _stage(signatures.compute_advantages)
update: Final = _stage(signatures.update)
publish: Final = _stage(signatures.publish)
checkpoint: Final = _stage(signatures.checkpoint)
close_trainer: Final = Call(
    signatures.close_trainer,
    LEASE,
    pickup=settings.POLL_START,  # one that is not there holds nothing
    heartbeat=TRAIN_HEARTBEAT,
    queue=TRAINER_QUEUE,
    living=False,
)
