"""How often an instance was quarantined and came back, by what it told its run (its workflow's histories say so)."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise

from temporalio.client import Client
from temporalio.service import RPCError

from psrl.schemas.ids import InstanceId, RunId, instance_workflow
from psrl.schemas.messages.rollout import InstanceState


async def returns_from_quarantine(client: Client, run: str, instance: InstanceId) -> int:
    """Of all executions of the instance's workflow, in order."""
    states = [state async for state in _told(client, instance_workflow(RunId(run), instance))]
    left = [before for before, after in pairwise(states) if after is InstanceState.SERVING]
    return left.count(InstanceState.QUARANTINED)


async def _told(client: Client, workflow_id: str) -> AsyncIterator[InstanceState]:
    """States, in the order in which they were told, each once."""
    executions = [item async for item in client.list_workflows(f"WorkflowId = '{workflow_id}'")]
    last = None
    for execution in sorted(executions, key=lambda item: item.start_time):
        handle = client.get_workflow_handle(workflow_id, run_id=execution.run_id)
        try:
            async for event in handle.fetch_history_events():
                signal = event.signal_external_workflow_execution_initiated_event_attributes
                if signal.signal_name == "instance_changed":
                    state = InstanceState(json.loads(signal.input.payloads[0].data)["state"])
                    if state is not last:
                        yield state
                    last = state
        except RPCError:
            continue  # its history was deleted after the retention period
