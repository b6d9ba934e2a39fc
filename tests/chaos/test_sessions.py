"""A conversation with a stack whose processes are killed one after the other, by a stock client that repeats."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from psrl.activities.sessions.access import run_token
from psrl.activities.sessions.sessions import find_session
from psrl.activities.sessions.view import BranchView, branches_of
from psrl.schemas.ids import SessionId
from psrl.workers.stack.parts import GATEWAY, ORCHESTRATOR
from tests.benchmarks.assembly import PARTS, RUN, SCRIPTED, Assembly, Shape, assembled, start_host
from tests.support.gateway_site import make_talking_model
from tests.support.runs import sums, write_jsonl
from tests.support.scripted_engine import scripted_tokens

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
TOKENS, TOKEN_S = 24, 0.1
INSTANCE = "rollout-0"
FLUSH_TOKENS = 4
"""What one kill of a host may cost, at most."""


@pytest.fixture
async def assembly(tmp_path: Path) -> AsyncIterator[Assembly]:
    shape = Shape(
        model=make_talking_model(tmp_path / "model"),
        prompts=write_jsonl(tmp_path / "prompts.jsonl", sums(8)),
        prompt_tokens=20,
        new_tokens=TOKENS,
        trajectories=1,
        instances=1,
        seqs=8,
        engine=SCRIPTED,
        script={"token_s": TOKEN_S, "sampled_log": str(tmp_path / "sampled")},
        flush_tokens=FLUSH_TOKENS,
        context_tokens=1000,
    )
    async with assembled(shape, (*PARTS, GATEWAY)) as made:
        yield made


async def test_a_hung_conversation_outlives_its_gateway_its_orchestrator_and_its_host(assembly: Assembly) -> None:
    log = Path(assembly.shape.script["sampled_log"])

    def sampled() -> int:
        return log.stat().st_size if log.exists() else 0

    headers = {"authorization": f"Bearer {await run_token(assembly.store, RUN)}"}
    url = f"http://{assembly.stack.gateway_address}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        opened = (await http.post("/sessions")).json()
        name = opened["session_id"]
        agent = openai.AsyncOpenAI(base_url=url + opened["url"], api_key=opened["token"], max_retries=50, timeout=120)
        said: list[Any] = [{"role": "user", "content": "Hello."}]
        asking = asyncio.create_task(agent.chat.completions.create(model=opened["model"], messages=said))
        await _until(lambda: sampled() >= 3)
        await http.post("/control/hang", json=[{"session_id": name, "reason": "a look at it"}])
        await _end_one(assembly, GATEWAY)
        await _end_one(assembly, ORCHESTRATOR)
        await _end_host(assembly)
        first = await asking
        said += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "On."}]
        waiting = asyncio.create_task(agent.chat.completions.create(model=opened["model"], messages=said))
        shown = f"{url}/sessions/{name}"
        await _until(lambda: httpx.get(shown, headers=headers).json()["status"] == "hung")
        await _end_one(assembly, GATEWAY)
        await _healthy(url)
        await http.post("/control/continue", json=[name])
        second = await waiting
        await agent.close()
    (branch,) = await _branches(assembly, name)
    assert [len(turn.token_ids) for turn in branch.turns] == [TOKENS, TOKENS]
    for turn, answer in zip(branch.turns, (first, second), strict=True):
        before = branch.token_ids[: turn.prompt_tokens]
        assert turn.token_ids == scripted_tokens(before, TOKENS), "the engine's own, whatever was interrupted"
        assert answer.choices[0].message.content == _text(assembly, turn.token_ids)
    assert 2 * TOKENS <= sampled() <= 2 * TOKENS + FLUSH_TOKENS


async def _end_one(assembly: Assembly, part: str) -> None:
    """Returns when its supervisor has started another."""
    killed = assembly.pids()[part]
    os.kill(killed, signal.SIGKILL)
    await _until(lambda: assembly.pids().get(part, killed) not in (killed, 0))


async def _end_host(assembly: Assembly) -> None:
    assembly.hosts[INSTANCE].kill()
    assembly.hosts[INSTANCE].wait()
    assembly.hosts[INSTANCE] = start_host(assembly.stack, assembly.shape, assembly.stack.instances[0])


async def _healthy(url: str) -> None:
    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz").is_success
        except httpx.TransportError:
            return False

    await _until(answers)


async def _until(holds: Callable[[], bool]) -> None:
    """Of what other processes do, which tell nobody of it."""
    async with asyncio.timeout(90):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _branches(assembly: Assembly, name: str) -> list[BranchView]:
    session = await find_session(assembly.store, RUN, SessionId(name))
    assert session is not None
    return await branches_of(assembly.store, session)


def _text(assembly: Assembly, ids: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(assembly.shape.model).decode(ids, skip_special_tokens=True))
