"""What people see of a run: the answers of its queries. Derived from state, never stored, never decided upon."""

from collections.abc import Mapping
from typing import Any

from ..schemas.ids import InstanceId, RunId
from ..schemas.messages.run import InstanceChanged, RunPhase, RunStatus
from .ledger import Ledger
from .run_state import RunState


def refused_status(run_id: RunId, phase: RunPhase, reason: str, waiting_for: str) -> RunStatus:
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
        waiting_for=waiting_for,
    )


def run_status(
    run_id: RunId,
    *,
    phase: RunPhase,
    reason: str,
    waiting_for: str,
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
        waiting_for=waiting_for,
        instances={name: f"{changed.state} v{changed.version}" for name, changed in sorted(instances.items())},
        dropped=state.dropped,
    )


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
