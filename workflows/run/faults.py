"""When a run cannot continue by itself, and how it says so. Pure; used by the parts of `TrainingRun`."""

from datetime import timedelta

from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

from .fleet import Fleet
from .state import RunState

UNREACHABLE, ENGINE_UNAVAILABLE, DATA_ERROR = "Unreachable", "EngineUnavailable", "DataError"


def never_came_up(part: str, limit: timedelta, hint: str) -> ApplicationError:
    return ApplicationError(
        f"{part} did not come up within {limit.total_seconds():.0f} s (psrl.deployment.start_timeout_s); {hint}",
        type=UNREACHABLE,
        non_retryable=True,
    )


def not_in_time(what: str, limit: timedelta) -> ApplicationError:
    return ApplicationError(
        f"{what} did not end within {limit.total_seconds():.0f} s", type=UNREACHABLE, non_retryable=True
    )


def no_instance_left(fleet: Fleet) -> ApplicationError:
    reasons = "; ".join(
        f"{name}: {one.told.reason if one.told else 'no report'}" for name, one in fleet.instances.items()
    )
    return ApplicationError(f"no rollout instance is left: {reasons}", type=ENGINE_UNAVAILABLE, non_retryable=True)


def hopeless(state: RunState, idle: str) -> ApplicationError | None:
    """Why no further buffer can be filled; `None` while one can."""
    patience_s = state.config.psrl.deployment.no_instance_timeout_s
    if state.fleet.none_left(patience_s):
        return no_instance_left(state.fleet)
    if state.stuck_s > patience_s:
        return ApplicationError(
            f"no group is in flight and none could be started for {state.stuck_s:.0f} s "
            f"(psrl.deployment.no_instance_timeout_s={patience_s:g}): {idle}. Instances: {state.fleet.described()}",
            type=ENGINE_UNAVAILABLE,
            non_retryable=True,
        )
    if barren := _barren(state):
        return ApplicationError(_why_barren(state, barren), type=DATA_ERROR, non_retryable=True)
    return None


def _barren(state: RunState) -> int:
    """So many groups in a row failed or were filtered that it is a fault of the task, not bad luck; else 0."""
    psrl, groups = state.config.psrl, state.groups
    if groups.failures >= psrl.agentic_rl.refill_failure_threshold:
        return groups.failures
    return groups.drops if groups.drops >= psrl.group_post_process.max_consecutive_drops else 0


def _why_barren(state: RunState, barren: int) -> str:
    groups = state.groups
    share = sum(groups.dropped.values()) / max(1, state.position.next_group)
    return (
        f"{barren} groups in a row could not be trained on ({share:.0%} of all drawn). "
        f"Most recent: {'; '.join(groups.last_reasons)}. Data: {list(state.config.data.train_files)}, "
        f"reward: {state.config.reward.described}"
    )


def last_failure(error: BaseException) -> str:
    """What an activity itself said last before its time was up; empty when it said nothing."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ApplicationError):
        found = found.__cause__
    return found.message if found is not None else ""


def explain(error: BaseException) -> str:
    """The innermost cause that says something: what a person needs first."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    return str(error)[:2000]
