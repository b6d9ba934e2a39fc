"""How a run comes to its state: a new one is admitted, an ended one is taken up from the store alone.

Used by `TrainingRun`, before anything of the run is started.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import PsrlSection, RunConfig, parse_config
    from ...schemas.errors import ConfigError
    from ...schemas.ids import RunId
    from ...schemas.messages.data import AdmitRequest, ReopenRun, RestoreRequest
    from ...schemas.messages.run import StartRun
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.waits import Waits
    from .control import Control
    from .faults import never_came_up
    from .groups import Groups
    from .instances import retire_earlier
    from .restore import empty_ledger, take_up
    from .state import RunState

NOBODY_CAME = frozenset({TimeoutType.SCHEDULE_TO_START, TimeoutType.SCHEDULE_TO_CLOSE})


async def admit(run: RunId, start: StartRun, control: Control, waits: Waits) -> RunState:
    request = AdmitRequest(run_id=run, config=start.config, workflow_run_id=workflow.info().first_execution_run_id)
    limit, what = _start_limit(start.config), "configuration, data, model and reward to be checked"
    with waits.during(what, "the cpu worker", settings.ADMISSION, "the run fails"), _blaming_cpu_worker(limit):
        admission = await replace(calls.admit_run, pickup=limit)(
            request, summary="check configuration, data, model and reward"
        )
    ledger = empty_ledger(RunConfig.model_validate(admission.config))
    return RunState(admission=admission, control=control, groups=Groups(ledger=ledger))


async def resume(run: RunId, start: StartRun, control: Control, waits: Waits) -> RunState:
    """From the store alone, whatever became of the earlier execution."""
    request = RestoreRequest(run_id=run, accept_changed_data=start.accept_changed_data)
    limit, what = _start_limit({}), "the run's position to be read from the store"
    with waits.during(what, "the cpu worker", settings.ADMISSION, "the run fails"), _blaming_cpu_worker(limit):
        restored = await replace(calls.restore_run, pickup=limit)(request, summary="find where to resume")
    config = RunConfig.model_validate(restored.admission.config)
    with waits.during("the earlier execution's instances to end", "the orchestrator", 2 * settings.LEASE):
        await retire_earlier(run, config)
    reopening = ReopenRun(
        run_id=run,
        admission=restored.admission,
        first_epoch=restored.first_epoch,
        workflow_run_id=workflow.info().first_execution_run_id,
    )
    state = take_up(restored, config, control)
    await calls.reopen_run(reopening, summary=f"resumed at step {restored.version}")
    return state


def _start_limit(config: Mapping[str, object]) -> timedelta:
    """Of a configuration that nobody has checked yet; one that is wrong in any way is refused by who checks it."""
    try:
        section = parse_config(config).psrl
    except ConfigError:
        section = PsrlSection()
    return timedelta(seconds=section.deployment.start_timeout_s)


@contextmanager
def _blaming_cpu_worker(limit: timedelta) -> Iterator[None]:
    """A call that nobody took in time fails the run by naming who should have."""
    try:
        yield
    except ActivityError as error:
        if isinstance(error.cause, ActivityTimeout) and error.cause.type in NOBODY_CAME:
            raise never_came_up("the cpu worker", limit, "its log is cpu.log under the stack's home") from error
        raise
