"""One run of an agent in a process of its own: what it returns, what it dies of, and that nothing of it stays."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from psrl.activities.agents.agent import AgentSaid, recipe
from psrl.activities.agents.run import Ended, run_to_its_end
from psrl.schemas.config.agentic import AgenticSection
from psrl.schemas.messages.agents import AgentTask
from psrl.schemas.messages.episodes import TerminateReason
from tests.support.agents import HANGING, gone, until_hanging

FINISHED, FAILED = TerminateReason.FINISHED, TerminateReason.ROLLOUT_ERROR
TASK = AgentTask(
    base_url="http://gateway/sessions/000007-t01/v1",
    api_key="secret",
    model="run-1",
    prompt="3+4=",
    extra={"row": 7},
    seed=5,
    session_id="000007-t01",
)


def agentic(**chosen: Any) -> AgenticSection:
    return AgenticSection.model_validate({"agent_loop": "session", **chosen})


def out(tmp_path: Path) -> Path:
    return tmp_path.parent / f"{tmp_path.name}-out" / "agent.log"


async def run(tmp_path: Path, limit_s: float = 60, task: AgentTask = TASK, **chosen: Any) -> Ended:
    return await run_to_its_end(recipe(agentic(**chosen)), task, limit_s, out(tmp_path))


async def run_function(tmp_path: Path, name: str, **options: Any) -> Ended:
    return await run(tmp_path, agent=f"tests.support.agents:{name}", **options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", AgentSaid()),
        ("nothing_async", AgentSaid()),
        ("half", AgentSaid(0.5)),
        ("with_info", AgentSaid(1.0, {"row": 7, "prompt": "3+4="})),
    ],
)
async def test_an_agent_may_say_nothing_or_what_it_is_worth(tmp_path: Path, name: str, said: AgentSaid) -> None:
    assert await run_function(tmp_path, name) == Ended(FINISHED, said)


async def test_an_agent_may_say_that_its_episode_is_to_be_dropped(tmp_path: Path) -> None:
    """Field report 86."""
    why = "the repository could not be cloned"
    assert await run_function(tmp_path, "dropped") == Ended(TerminateReason.DROPPED, AgentSaid(drop=why), why)


async def test_an_agent_is_not_told_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSRL_POSTGRES_URL", "postgresql://user:password@host/db")
    assert await run(tmp_path, agent_command=["env"]) == Ended(FINISHED)
    printed = out(tmp_path).read_text()
    assert "OPENAI_API_KEY=secret" in printed
    assert "password" not in printed


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text", "returned 'done'"),
        ("wrong_key", "returned a dict with 'rewrad'"),
        ("not_json", "returned info.at="),
        ("raises", "ValueError: no idea"),
        ("raises_async", "ValueError: no idea"),
        ("ends_its_process", "it ended the process that runs it (exit status 3)"),
    ],
)
async def test_an_agent_that_fails_is_told_by_what_it_did(tmp_path: Path, name: str, told: str) -> None:
    ended = await run_function(tmp_path, name)
    assert ended.reason is FAILED
    assert ended.error.startswith(told)


async def test_what_it_printed_is_kept_and_its_last_words_are_in_the_error(tmp_path: Path) -> None:
    ended = await run_function(tmp_path, "raises")
    printed = out(tmp_path).read_text()
    assert printed.startswith("thinking\nTraceback")
    assert ended.error.endswith(printed.strip()[-20:])
    assert str(out(tmp_path)) in ended.error


async def test_an_agent_that_talks_without_end_fills_no_disk(tmp_path: Path) -> None:
    ended = await run_function(tmp_path, "talks_without_end")
    assert out(tmp_path).stat().st_size < 1.1 * 2**20
    assert ended.error.startswith("ValueError: hoarse")
    assert ended.error.endswith("ValueError: hoarse")


async def test_an_agent_that_dies_for_want_of_context_ended_for_want_of_context(tmp_path: Path) -> None:
    ended = await run_function(tmp_path, "out_of_room")
    assert ended.reason is TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED


async def test_an_agent_past_its_limit_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGING, str(tmp_path))
    ended = await run_function(tmp_path, "hangs", limit_s=5)
    assert (ended.reason, ended.error) == (TerminateReason.TRAJECTORY_TIMEOUT, "not done within 5 s, and killed")
    assert gone(tmp_path)


async def test_an_agent_that_nobody_waits_for_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGING, str(tmp_path))
    running = asyncio.create_task(run_function(tmp_path, "hangs"))
    await asyncio.to_thread(until_hanging, tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(tmp_path)


async def test_a_program_is_told_its_task_by_its_environment(tmp_path: Path) -> None:
    names = ["OPENAI_BASE_URL", "OPENAI_API_KEY", "PSRL_MODEL", "PSRL_TASK"]
    script = (
        "import json, os; from pathlib import Path; task = json.loads(Path(os.environ['PSRL_TASK']).read_text());"
        f"print(json.dumps([[os.environ[name] for name in {names}], task, os.getcwd(), os.listdir()]))"
    )
    ended = await run(tmp_path, agent_command=[sys.executable, "-c", script])
    told, task, folder, files = json.loads(out(tmp_path).read_text())
    assert ended == Ended(FINISHED)
    assert told == [TASK.base_url, "secret", "run-1", f"{folder}/task.json"]
    assert (task, files) == (TASK.model_dump(mode="json"), ["task.json"])
    assert not await asyncio.to_thread(os.path.exists, folder)


async def test_a_program_has_failed_when_its_exit_status_says_so(tmp_path: Path) -> None:
    ended = await run(tmp_path, agent_command=[sys.executable, "-c", "import sys; print('sorry'); sys.exit(4)"])
    assert ended.reason is FAILED
    assert ended.error.startswith("exit status 4; its last words")
    assert ended.error.endswith("sorry")
