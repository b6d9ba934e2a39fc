"""What people see of a run: the answers of its queries. Derived from state, never stored, never decided upon."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio import workflow

from ...schemas.config import RunConfig
from ...schemas.ids import InstanceId, RunId
from ...schemas.messages.run import InstanceChanged, RunPhase, RunStatus, Wait
from ..ledger import Ledger
from .dispatcher import Dispatcher
from .state import RunState


def wait_for_person(what: str) -> Wait:
    return Wait(what=what, owner="a person", since=workflow.now())


def wait_for_groups(config: RunConfig, ledger: Ledger, dispatcher: Dispatcher, since: float) -> Wait:
    """The trainer has nothing to do until enough groups are complete."""
    idle = f"; nothing new is started: {dispatcher.why_idle}" if dispatcher.why_idle else ""
    oldest = min(dispatcher.started_at.items(), key=lambda item: item[1], default=None)
    deadline = None if oldest is None else _moment(oldest[1] + config.psrl.group_timeout_s)
    return Wait(
        what=f"buffer {ledger.buffer}: {ledger.occupied_count} of {ledger.batch_groups} groups complete{idle}",
        owner="the rollout instances and rewards",
        since=_moment(since),
        deadline=deadline,
        otherwise="" if oldest is None else f"group {oldest[0]} is given up and replaced",
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def refused_status(run_id: RunId, phase: RunPhase, reason: str, waits: tuple[Wait, ...]) -> RunStatus:
    """Of a run that was not admitted, or not yet."""
    return RunStatus(
        run_id=run_id,
        phase=phase,
        reason=reason,
        step=0,
        total_steps=0,
        version=0,
        live_groups=0,
        occupied_groups=0,
        waiting_for=_first(waits),
        waits=waits,
    )


def run_status(
    run_id: RunId,
    *,
    phase: RunPhase,
    reason: str,
    waits: tuple[Wait, ...],
    state: RunState,
    ledger: Ledger,
    instances: Mapping[InstanceId, InstanceChanged],
) -> RunStatus:
    return RunStatus(
        run_id=run_id,
        phase=phase,
        reason=reason,
        step=ledger.version,
        total_steps=state.admission.total_steps,
        version=ledger.version,
        live_groups=len(ledger.live_groups()),
        occupied_groups=ledger.occupied_count,
        reward_mean=state.reward_mean,
        validation_accuracy=state.validation_accuracy,
        waiting_for=_first(waits),
        waits=waits,
        instances={name: f"{changed.state} v{changed.version}" for name, changed in sorted(instances.items())},
        dropped=state.dropped,
    )


def _first(waits: tuple[Wait, ...]) -> str:
    return waits[0].what if waits else ""


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
