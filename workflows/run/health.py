"""When a run cannot go on by itself: pure rules over its state. Used by `TrainingRun`."""

from collections.abc import Mapping

from ...schemas.config import RunConfig
from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import InstanceState
from ...schemas.messages.run import InstanceChanged
from .state import RunState


def no_instance_left(instances: Mapping[InstanceId, InstanceChanged], config: RunConfig) -> bool:
    """Every instance of the run has stopped, or was tried in vain for longer than the run will wait. It is the failed
    try that counts, not the clock: a stack that was down for a night gets its chance when it is up again."""
    deployment = config.psrl.deployment
    return len(instances) == deployment.n_rollout_instances and all(
        changed.state is InstanceState.STOPPED
        or (changed.state is InstanceState.QUARANTINED and changed.quarantined_s >= deployment.no_instance_timeout_s)
        for changed in instances.values()
    )


def barren(state: RunState, config: RunConfig) -> bool:
    """So many groups in a row failed or were filtered that it is a fault of the task, not bad luck."""
    limit = config.psrl.max_consecutive_failures
    if config.psrl.group_post_process.enable:
        limit = max(limit, config.psrl.group_post_process.max_consecutive_drops)
    return state.unproductive >= limit


def why_no_instance(instances: Mapping[InstanceId, InstanceChanged]) -> str:
    reasons = "; ".join(f"{changed.instance}: {changed.reason}" for changed in instances.values())
    return f"no rollout instance is left: {reasons}"


def why_barren(state: RunState, config: RunConfig, drawn: int) -> str:
    share = sum(state.dropped.values()) / max(1, drawn)
    return (
        f"{state.unproductive} groups in a row gave no usable batch member ({share:.0%} of all drawn). "
        f"Most recent: {'; '.join(state.last_reasons)}. Data: {list(config.data.train_files)}, "
        f"reward: {config.reward.function}"
    )
