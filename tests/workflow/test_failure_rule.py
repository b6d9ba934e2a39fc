"""A broken invariant ends the workflow in which it happens, whichever it is, and is never repeated for ever."""

from datetime import timedelta
from typing import Any, Never

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner

from psrl.schemas.errors import InvariantViolated
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, Version, session_id
from psrl.schemas.messages.run import StartEvaluation, StartGroup, StartInstance, StartRun, StartStep
from psrl.schemas.messages.sessions import SessionLimits, StartSession
from psrl.workers.orchestrator import WORKFLOWS
from tests.support.groups import rollout_settings
from tests.support.rollout import SPEC
from tests.support.scripted_parts import ScriptedParts, minimal_config

RUN = RunId("run")
INPUTS = {
    "TrainingRun": StartRun(config=minimal_config()),
    "RolloutGroup": StartGroup(
        run_id=RUN, group_id=GroupId("000000"), run_workflow_id=RUN, version_tag=0, rollout=rollout_settings()
    ),
    "TrainStep": StartStep(run_id=RUN, buffer=0, taken=(GroupId("000000"),), dropped=(), checkpoint=False, waited_s=0),
    "RolloutInstance": StartInstance(
        run_workflow_id=RUN, instance=InstanceId("rollout-0"), spec=SPEC, version=0, interrupt=True, start_timeout_s=60
    ),
    "Evaluation": StartEvaluation(
        run_id=RUN, run_workflow_id=RUN, version=Version(0), concurrency=4, rollout=rollout_settings()
    ),
    "Session": StartSession(
        run_id=RUN,
        session_id=session_id(GroupId("000000"), 0),
        group_id=GroupId("000000"),
        version_tag=0,
        rollout=rollout_settings(),
        limits=SessionLimits(timeout_s=3600, idle_s=600, hang_s=600, drain_s=30),
    ),
}
SIGNALS = {"Session": "hang"}
"""Where nothing happens without one."""


@pytest.mark.parametrize("error", [InvariantViolated("L1: broken"), KeyError("nobody foresaw it")], ids=type)
@pytest.mark.parametrize("kind", [kind.__name__ for kind in WORKFLOWS])
async def test_it_fails_in_every_workflow(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception
) -> None:
    """It breaks where the workflow calls its first activity."""

    def broken(*args: Any, **options: Any) -> Never:
        raise error

    for name in ("execute_activity", "execute_local_activity", "start_activity", "start_local_activity"):
        monkeypatch.setattr(workflow, name, broken)
    async with ScriptedParts().workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        with pytest.raises(WorkflowFailureError) as failure:
            await client.execute_workflow(
                kind,
                INPUTS[kind],
                id=run_id,
                task_queue=ORCHESTRATOR_QUEUE,
                run_timeout=timedelta(seconds=20),
                start_signal=SIGNALS.get(kind),
            )
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError), f"it did not fail by itself: {cause!r}"
    assert cause.type == type(error).__name__
