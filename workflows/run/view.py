"""What people see of a run: the answers of its queries. Derived from state, never stored, never decided upon."""

from datetime import UTC, datetime
from typing import Any

from ...schemas.config.sync_and_mig import SyncMethod
from ...schemas.ids import RunId
from ...schemas.messages.run import RunPhase, RunStatus, Wait
from ..calls import settings
from ..ledger import Ledger
from .control import Control
from .dispatcher import Idle
from .state import RunState


def current_waits(
    control: Control, state: RunState | None, idle: Idle, calls: tuple[Wait, ...], now: datetime
) -> tuple[Wait, ...]:
    """Everything a run waits for now, the most telling first (L11). `calls`: what its main loop waits for."""
    if control.ended:
        return ()
    if control.held is not None:
        return (_person(f"step {control.held.buffer}: {control.held.reason}", now), *calls)
    if control.paused and not control.stopping:
        return (*calls, _person("signal `resume`", now))
    if state is None or control.phase is not RunPhase.RUNNING:
        return calls
    return (*(calls or _without_a_step(state, idle)), *_syncs(state))


def _without_a_step(state: RunState, idle: Idle) -> tuple[Wait, ...]:
    groups, coordinator = _groups(state, idle), _coordinator(idle)
    if coordinator is None:
        return (groups,)
    return (groups, coordinator) if state.groups.unfinished else (coordinator, groups)


def _person(what: str, now: datetime) -> Wait:
    return Wait(what=what, owner="a person", since=now)


def _groups(state: RunState, idle: Idle) -> Wait:
    """The trainer has nothing to do until enough groups are complete."""
    ledger, limits = state.groups.ledger, state.config.psrl
    oldest = min(state.groups.started_at.items(), key=lambda item: item[1], default=None)
    what = f"buffer {ledger.buffer}: {ledger.occupied_count} of {ledger.batch_groups} groups complete"
    if idle.reason:
        what += f"; nothing new is started: {idle.reason}"
    if oldest is None:
        patience_s, otherwise = limits.deployment.no_instance_timeout_s, "the run fails"
        deadline = _moment(max(state.swept_at, state.idle_since) - state.stuck_s + patience_s)
    else:
        deadline, otherwise = _moment(oldest[1] + limits.group_timeout_s), f"group {oldest[0]} is given up and replaced"
    return Wait(
        what=what,
        owner="the rollout instances and rewards",
        since=_moment(state.idle_since),
        deadline=deadline,
        otherwise=otherwise,
    )


def _coordinator(idle: Idle) -> Wait | None:
    """It was asked for room and has not answered."""
    if idle.asked_at is None:
        return None
    since = _moment(idle.asked_at)
    deadline = since + settings.STORE_PATIENCE
    return Wait(
        what="room for new groups", owner="the coordinator", since=since, deadline=deadline, otherwise="the run fails"
    )


def _syncs(state: RunState) -> tuple[Wait, ...]:
    """Instances that are behind, and sync when their moment comes."""
    strategy = state.config.psrl.rollout_coordination.sync_and_mig_strategy
    if strategy.method is SyncMethod.GREEDY:
        return ()
    return tuple(
        Wait(
            what=f"a good moment for {name} to sync to v{state.fleet.announced} (by {strategy.sync.indicator})",
            owner="the coordinator",
            since=_moment(one.behind_since),
            deadline=_moment(one.behind_since + strategy.sync.max_wait_s),
            otherwise="it syncs all the same",
        )
        for name, one in sorted(state.fleet.instances.items())
        if one.behind_since is not None
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def run_status(run_id: RunId, control: Control, state: RunState | None, waits: tuple[Wait, ...]) -> RunStatus:
    """`state`: none of a run that is not admitted."""
    status = RunStatus(
        run_id=run_id,
        phase=control.shown,
        reason=control.reason or (control.held.reason if control.held else ""),
        notice=control.notice,
        step=0,
        total_steps=0,
        version=0,
        live_groups=0,
        occupied_groups=0,
        waiting_for=waits[0].what if waits else "",
        waits=waits,
    )
    if state is None:
        return status
    ledger = state.groups.ledger
    return status.model_copy(
        update={
            "step": ledger.version,
            "total_steps": state.admission.total_steps,
            "notes": state.admission.notes,
            "version": ledger.version,
            "live_groups": len(ledger.live_groups()),
            "occupied_groups": ledger.occupied_count,
            "reward_mean": state.reward_mean,
            "validation_accuracy": state.rounds.accuracy,
            "instances": _instances(state),
            "dropped": dict(state.groups.dropped),
        }
    )


def _instances(state: RunState) -> dict[str, str]:
    told = {name: instance.told for name, instance in sorted(state.fleet.instances.items())}
    return {name: f"{last.state} v{last.version}" for name, last in told.items() if last is not None}


def buffers(ledger: Ledger) -> list[dict[str, Any]]:
    """The buffers as people picture them."""
    return [
        {
            "buffer": view.buffer,
            "state": view.state.value,
            "empty": view.empty,
            "reserved": view.reserved,
            "occupied": view.occupied,
        }
        for view in ledger.view()
    ]
