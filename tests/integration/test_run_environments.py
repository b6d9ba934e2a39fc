"""Whole runs whose trajectories are played with an environment, with scripted engines and a real trainer."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError

from psrl.schemas.messages.run import RunPhase
from tests.support import environments as scripted
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SEGMENTS = """
    SELECT s.group_id, s.index, s.turn, s.kind, s.tokens FROM segments s
    JOIN batch_members USING (run_id, group_id, index) WHERE run_id = :run ORDER BY s.group_id, s.index, s.turn, s.seq
"""
SAMPLED_BEFORE = (
    "SELECT count(*) FROM segments s JOIN groups g USING (run_id, group_id) WHERE s.version < g.version_tag"
)


def config(small: SmallStack, environment: str, **agentic: Any) -> dict[str, Any]:
    section = {
        "agent_loop": "multi_turn",
        "environment": f"tests.support.environments:{environment}",
        "max_turns": 3,
        "max_turn_tokens": 4,
        **agentic,
    }
    return small.config(psrl={"staleness": 1, "agentic_rl": section}, data={"max_response_length": 40})


@pytest.mark.parametrize("environment", ["Counting", "Saving"])
async def test_a_run_trains_on_conversations_with_an_environment(
    open_stack: OpenStack, store: AsyncEngine, environment: str
) -> None:
    scripted.events.clear()
    async with open_stack() as small:
        result = await small.run(config(small, environment))
        assert (result.phase, result.steps) == (RunPhase.DONE, 3)
        async with store.connect() as connection:
            found = (await connection.execute(text(SEGMENTS), {"run": small.run_id})).all()
            assert await connection.scalar(text(SAMPLED_BEFORE)) == 0
    trajectories: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for group, index, turn, kind, tokens in found:
        trajectories.setdefault((group, index), []).append((turn, kind))
        assert kind == "environment" or tokens <= 4
    assert len(trajectories) == 3 * 2 * 2
    for conversation in trajectories.values():
        kinds = [(0, "sampled"), (1, "environment"), (1, "sampled"), (2, "environment"), (2, "sampled")]
        assert list(dict.fromkeys(conversation)) == kinds[: len(set(conversation))]
        assert conversation[-1][1] == "sampled"
    assert max(turn for conversation in trajectories.values() for turn, _ in conversation) == 2
    begun = sum(event.startswith("reset") for event in scripted.events)
    assert scripted.events.count("close") == begun, "each environment is closed once"


async def test_environments_that_fail_fail_their_groups_and_the_run_says_why(open_stack: OpenStack) -> None:
    async with open_stack(script=Script(stop_after=4)) as small:
        run = await small.start(config(small, "Odd", environment_kwargs={"returned": "nothing"}, step_max_attempts=1))
        with pytest.raises(WorkflowFailureError) as failed:
            await small.finish(run)
        assert "rollout_error: step returned None; allowed: a Step" in str(failed.value.cause)
