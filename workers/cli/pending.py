"""What of a run waits for a worker or is being repeated now, as Temporal knows it. For `psrl status RUN`."""

from datetime import UTC, datetime
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

PATIENCE_S = 5.0
"""A call that no worker has picked up for so long is worth a line."""
MAX_LINES = 10
LOOKED_AT = "RlRun = '{run}' AND ExecutionStatus = 'Running' AND WorkflowType != 'RolloutGroup'"
"""Groups are many, and the run's own waits name the oldest of them."""


async def troubled_calls(client: Client, run_id: str, now: datetime | None = None) -> list[str]:
    """One line per call that has failed before, or that no worker has picked up."""
    now = now or datetime.now(UTC)
    lines: list[str] = []
    async for execution in client.list_workflows(LOOKED_AT.format(run=run_id)):
        described = await client.get_workflow_handle(execution.id, run_id=execution.run_id).describe()
        found = (_line(execution.id, call, now) for call in described.raw_description.pending_activities)
        lines += [line for line in found if line]
    return lines[:MAX_LINES]


def _line(workflow_id: str, call: Any, now: datetime) -> str:
    waiting = call.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    since_s = (now - call.scheduled_time.ToDatetime(UTC)).total_seconds()
    if call.attempt < 2 and not (waiting and since_s > PATIENCE_S):
        return ""
    state = f"in progress on {call.last_worker_identity}"
    if waiting:
        state = f"no worker has picked it up for {since_s:.0f} s" if since_s >= 0 else f"next try in {-since_s:.0f} s"
    failure = call.last_failure.message if call.HasField("last_failure") else ""
    told = f"{workflow_id} {call.activity_type.name}: attempt {call.attempt}, {state}"
    return f"{told}; the last one failed: {failure[:300]}" if failure else told
