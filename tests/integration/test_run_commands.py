"""A run that is started and steered by the plain `temporal` command alone."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError

from psrl.schemas.messages.run import RunPhase, RunResult
from tests.support.promises import promises_hold
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack
from tests.support.temporal import temporal_binary

MORE_THAN_IT_TRAINS = 10_000
pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


async def test_a_run_is_started_paused_resumed_and_stopped_and_its_name_is_taken(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    async with open_stack(script=Script(token_s=0.02)) as small:
        name = ("--workflow-id", small.run_id)
        config = json.dumps({"config": small.config(trainer={"total_training_steps": MORE_THAN_IT_TRAINS})})
        start = ("start", "--type", "TrainingRun", "--task-queue", "psrl", *name, "--input", config)
        assert (await _temporal(small, *start))[0] == 0
        code, told = await _temporal(small, *start, "--fail-existing")
        assert code != 0
        assert "already" in told, told
        assert (await _temporal(small, *start))[0] == 0, "by default the command reports the run that exists"
        await _until(small, lambda status: status["version"] >= 1)

        await _temporal(small, "signal", *name, "--name", "pause")
        paused = await _until(small, lambda status: status["waiting_for"] == "signal `resume`")
        assert paused["phase"] == "paused"
        await _temporal(small, "signal", *name, "--name", "resume")
        await _until(small, lambda status: status["version"] > paused["version"])

        await _temporal(small, "signal", *name, "--name", "stop")
        result = await small.finish(small.client.get_workflow_handle(small.run_id, result_type=RunResult))
        assert result.phase is RunPhase.STOPPED
        assert (await promises_hold(store, small.run_id)).batches == result.steps
        assert (small.stack.checkpoints_dir / small.run_id / f"step_{result.version:06d}" / "COMMITTED").exists()

        # The server gives a closed workflow's id again; the store knows better.
        assert (await _temporal(small, *start))[0] == 0
        with pytest.raises(WorkflowFailureError) as refused:
            await small.client.get_workflow_handle(small.run_id).result()
        cause = refused.value.cause
        assert cause is not None
        assert f"run id {small.run_id!r} is already used by a run created" in _innermost(cause)
        assert (await promises_hold(store, small.run_id)).batches == result.steps


async def _temporal(small: SmallStack, *arguments: str) -> tuple[int, str]:
    command = [temporal_binary(), "workflow", *arguments, "--address", small.stack.temporal_address]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, told.decode()


async def _until(small: SmallStack, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask as people do."""
    async with asyncio.timeout(60):
        while True:
            query = ("query", "--workflow-id", small.run_id, "--type", "status", "-o", "json")
            code, told = await _temporal(small, *query)
            status = json.loads(told)["queryResult"][0] if code == 0 else None
            if status is not None and condition(status):
                return dict(status)
            await asyncio.sleep(0.1)


def _innermost(error: BaseException) -> str:
    while getattr(error, "cause", None) is not None:
        error = error.cause  # type: ignore[attr-defined]
    return str(error)
