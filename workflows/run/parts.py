"""The calls a run makes to other parts: one function per call, with its queue, summary and patience.

Keeps `TrainingRun` readable: what happens there, how it is called here.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as ActivityTimeout
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import PsrlSection, RunConfig, parse_config
    from ...schemas.errors import ConfigError
    from ...schemas.ids import (
        GroupId,
        InstanceId,
        RunId,
        Version,
        evaluation_workflow,
        instance_id,
        instance_workflow,
    )
    from ...schemas.messages.data import Admission, AdmitRequest, ReopenRun, Restored, RestoreRequest
    from ...schemas.messages.rollout import DispatchPlanRequest, EngineSpec, InstanceState, Sampling
    from ...schemas.messages.run import (
        CancelGroups,
        CollectReports,
        GroupReport,
        InstanceChanged,
        RunStatus,
        StartEvaluation,
        StartInstance,
    )
    from ...schemas.messages.training import CheckpointRequest, OpenTrainerRequest
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.lifetime import while_alive
    from ..rollout.evaluation import Evaluation
    from ..rollout.instance import RolloutInstance
    from ..search import RUN, STATE, STEP
    from ..training.stage import Hold, trainer_stage
    from .health import why_no_instance

EVALUATION_CONCURRENCY = 64
NOBODY_CAME = frozenset({TimeoutType.SCHEDULE_TO_START, TimeoutType.SCHEDULE_TO_CLOSE})


def attributes(run: RunId, step: int | None = None) -> TypedSearchAttributes:
    pairs: list[SearchAttributePair[Any]] = [SearchAttributePair(RUN, run), SearchAttributePair(STATE, "running")]
    if step is not None:
        pairs.append(SearchAttributePair(STEP, step))
    return TypedSearchAttributes(pairs)


async def admit(run: RunId, config: dict[str, object]) -> Admission:
    request = AdmitRequest(run_id=run, config=config, workflow_run_id=workflow.info().first_execution_run_id)
    limit = _start_limit(config)
    with _blaming("the cpu worker", limit, "its log is cpu.log under the stack's home"):
        return await replace(calls.admit_run, pickup=limit)(
            request, summary="check configuration, data, model and reward"
        )


async def restore(run: RunId, accept_changed_data: bool) -> Restored:
    limit = _start_limit({})
    with _blaming("the cpu worker", limit, "its log is cpu.log under the stack's home"):
        return await replace(calls.restore_run, pickup=limit)(
            RestoreRequest(run_id=run, accept_changed_data=accept_changed_data),
            summary="find out where the run continues",
        )


def _start_limit(config: Mapping[str, object]) -> timedelta:
    """Of a configuration that nobody has checked yet; one that is wrong in any way is refused by who checks it."""
    try:
        section = parse_config(config).psrl
    except ConfigError:
        section = PsrlSection()
    return timedelta(seconds=section.deployment.start_timeout_s)


async def reopen(run: RunId, restored: Restored) -> None:
    await calls.reopen_run(
        ReopenRun(
            run_id=run,
            admission=restored.admission,
            first_epoch=restored.first_epoch,
            workflow_run_id=workflow.info().first_execution_run_id,
        ),
        summary="the run is resumed",
    )


async def retire_instances(run: RunId, config: RunConfig) -> None:
    """Wait until no instance workflow of an earlier execution is left: one whose run was closed from outside notices
    it within a lease, and writes the run down as failed."""
    for instance in instances_of(config):
        old = workflow.get_external_workflow_handle(instance_workflow(run, instance))
        for _ in range(2 * int(settings.LEASE.total_seconds())):
            try:
                await old.signal("stop")
            except ApplicationError:
                break
            await workflow.sleep(1)
        else:
            raise _never_came_up(f"the end of {instance} of the earlier execution", 2 * settings.LEASE, "")


async def open_trainer(run: RunId, config: RunConfig, hold: Hold, held: Callable[[], bool]) -> None:
    """`held`: whether it waits for room on its disk; from then on the stage has its own patience."""
    limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
    opening = asyncio.create_task(
        trainer_stage(
            calls.open_trainer,
            OpenTrainerRequest(run_id=run),
            summary="load the model, publish v0",
            hold=hold,
            takes_turns=False,  # of a run that has not begun, the user hears at once
        )
    )
    try:
        await while_alive(lambda: opening.done() or held(), limit)
        await opening
    except TimeoutError as error:
        raise _never_came_up("the trainer", limit, "its log is trainer.log under the stack's home") from error
    finally:
        opening.cancel()


async def reach_coordinator(run: RunId, config: RunConfig) -> None:
    """Later a coordinator may be away for a while; one that never came up is a fault of the start."""
    limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
    try:
        await replace(calls.plan_dispatch, patience=limit, living=False)(
            DispatchPlanRequest(run_id=run, trajectories_per_group=config.psrl.offered_trajectories),
            summary="is the coordinator there?",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise _never_came_up("the coordinator", limit, "its log is coordinator.log under the stack's home") from error


async def close_trainer(run: RunId) -> None:
    await calls.close_trainer(OpenTrainerRequest(run_id=run), summary="free the trainer")


async def save_checkpoint(run: RunId, version: Version, hold: Hold) -> str:
    """Where it is, complete on disk."""
    saved = await trainer_stage(
        calls.checkpoint,
        CheckpointRequest(run_id=run, buffer=version - 1, wait=True),
        summary=f"checkpoint of v{version}, complete",
        hold=hold,
    )
    return saved.path


def instances_of(config: RunConfig) -> list[InstanceId]:
    return [instance_id(number) for number in range(config.psrl.deployment.n_rollout_instances)]


async def start_instances(run: RunId, config: RunConfig, version: Version) -> None:
    for instance in instances_of(config):
        await workflow.start_child_workflow(
            RolloutInstance.run,
            StartInstance(
                run_workflow_id=workflow.info().workflow_id,
                instance=instance,
                spec=EngineSpec.of(run, config),
                version=version,
                interrupt=config.psrl.rollout_coordination.partial_rollout.enable,
                start_timeout_s=config.psrl.deployment.start_timeout_s,
                restart_budget=config.psrl.deployment.restart_budget,
                restart_budget_heals_s=config.psrl.deployment.restart_budget_heals_s,
            ),
            id=instance_workflow(run, instance),
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"{instance} for {run}",
            search_attributes=attributes(run),
        )


async def first_instance(known: Mapping[InstanceId, InstanceChanged], config: RunConfig) -> None:
    """Wait until one instance serves; the others may follow. Fails naming every instance that did not come up."""
    limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
    names = instances_of(config)
    try:
        await while_alive(
            lambda: (
                any(c.state is InstanceState.SERVING for c in known.values())
                or (len(known) == len(names) and all(c.state is InstanceState.QUARANTINED for c in known.values()))
            ),
            limit,
        )
    except TimeoutError as error:
        states = ", ".join(f"{n} ({_state_of(known.get(n))})" for n in names)
        raise _never_came_up(states, limit, "their logs are rollout-*.log") from error
    if not any(c.state is InstanceState.SERVING for c in known.values()):
        # A start that keeps failing is a fault of the set-up: nothing is gained by trying on for long.
        raise ApplicationError(why_no_instance(known), type="EngineUnavailable", non_retryable=True)


def _state_of(changed: InstanceChanged | None) -> str:
    return "no report" if changed is None else f"{changed.state}: {changed.reason or 'no reason given'}"


async def sync_instances(run: RunId, config: RunConfig, version: Version) -> None:
    await _signal_instances(run, config, "sync", version)


async def stop_instances(run: RunId, config: RunConfig) -> None:
    await _signal_instances(run, config, "stop")


async def instances_stopped(known: Mapping[InstanceId, InstanceChanged], config: RunConfig) -> None:
    """Wait until every engine is shut down. One that does not answer is not waited for: its lease ends without us."""
    try:
        await workflow.wait_condition(
            lambda: all(n in known and known[n].state is InstanceState.STOPPED for n in instances_of(config)),
            timeout=settings.LEASE,
        )
    except TimeoutError:
        workflow.logger.warning("not given back within %s: %s", settings.LEASE, dict(known))


async def _signal_instances(run: RunId, config: RunConfig, name: str, *args: object) -> None:
    """An instance that has ended needs no signal."""

    async def one(instance: InstanceId) -> None:
        handle = workflow.get_external_workflow_handle(instance_workflow(run, instance))
        try:
            await handle.signal(name, args=args)
        except ApplicationError as error:
            workflow.logger.warning("%s took no signal %s: %s", instance, name, error)

    await asyncio.gather(*(one(instance) for instance in instances_of(config)))


async def start_evaluation(run: RunId, config: RunConfig, version: Version) -> None:
    rollout = config.rollout
    await workflow.start_child_workflow(
        Evaluation.run,
        StartEvaluation(
            run_id=run,
            run_workflow_id=workflow.info().workflow_id,
            version=version,
            samples=rollout.val.n,
            sampling=Sampling(temperature=rollout.val.temperature, max_tokens=config.data.max_response_length),
            seed=config.trainer.seed,
            concurrency=EVALUATION_CONCURRENCY,
            timeout_s=config.psrl.group_timeout_s,
            reward_timeout_s=config.scoring_timeout_s,
            routing=config.psrl.rollout_coordination.routing_strategy.method,
        ),
        id=evaluation_workflow(run, version),
        parent_close_policy=ParentClosePolicy.ABANDON,
        static_summary=f"validation at v{version}",
        search_attributes=attributes(run, step=version),
    )


async def cancel_groups(run: RunId, groups: tuple[GroupId, ...], reason: str) -> None:
    for at in range(0, len(groups), settings.DISPATCH_WAVE):
        wave = groups[at : at + settings.DISPATCH_WAVE]
        await calls.cancel_groups(
            CancelGroups(run_id=run, groups=wave, reason=reason), summary=f"give up {len(wave)} groups: {reason}"
        )


async def collect_reports(run: RunId, groups: tuple[GroupId, ...]) -> tuple[GroupReport, ...]:
    collected = await calls.collect_reports(
        CollectReports(run_id=run, groups=groups), summary=f"look after {len(groups)} groups without a report"
    )
    return collected.reports


async def record(status: RunStatus) -> None:
    await calls.record_run(status, summary=f"run is {status.phase}")


async def within(condition: Callable[[], bool], limit: timedelta, what: str) -> None:
    """Raises when `condition` does not hold within the limit; names what was waited for (L11)."""
    try:
        await while_alive(condition, limit)
    except TimeoutError as error:
        raise ApplicationError(
            f"{what} did not end within {limit.total_seconds():.0f} s", type="Unreachable", non_retryable=True
        ) from error


def explain(error: BaseException) -> str:
    """The innermost cause that says something: what a person needs first."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    return str(error)[:2000]


@contextmanager
def _blaming(part: str, limit: timedelta, hint: str) -> Iterator[None]:
    """A call that nobody took in time fails the run by naming who should have."""
    try:
        yield
    except ActivityError as error:
        if isinstance(error.cause, ActivityTimeout) and error.cause.type in NOBODY_CAME:
            raise _never_came_up(part, limit, hint) from error
        raise


def _never_came_up(part: str, limit: timedelta, hint: str) -> ApplicationError:
    return ApplicationError(
        f"{part} did not come up within {limit.total_seconds():.0f} s (psrl.deployment.start_timeout_s); {hint}",
        type="Unreachable",
        non_retryable=True,
    )
