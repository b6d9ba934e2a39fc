"""What a turn of a session costs beside its engine: the time that HTTP, the gateway, the workflow and the store add,
and processor time per process. The engine is scripted.

`sessions`: 16 conversations at the same time, in turns of two seconds. They begin one after the other within the time
of a turn, as agents that know nothing of each other do: in lockstep all 16 would queue for the processor, and that
would be measured. Processor time is told whole, and without what the same processes need at rest.
Goals: 40 ms added in the median, 150 ms at the 99th percentile; 15 ms of processor time for server and orchestrator
together. `many-sessions`: 256 at the same time, each with a history of 8,000 tokens; the gateway's health is asked for
all the while, and must answer within 100 ms.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import func, select

from psrl.activities.sessions.access import run_token
from psrl.schemas.tables import Segment
from tests.benchmarks.assembly import PARTS, RUN, SCRIPTED, Assembly, Shape, assembled
from tests.benchmarks.cpu_time import cpu_seconds, spent
from tests.support.gateway_site import make_talking_model
from tests.support.runs import sums, write_jsonl

GATEWAY = "gateway"
CONTROL = ("temporal", "orchestrator")
CONTEXT, TOKENS, TOKEN_S = 12_000, 10, 0.2
AT_ONCE, TURNS, WARM_UP = 16, 12, 2
IDLE_S = 10.0
GOAL_MEDIAN_MS, GOAL_P99_MS, GOAL_CPU_MS = 40, 150, 15
MANY, HISTORY, MANY_TURNS = 256, 8_000, 3
HEALTH_EVERY_S, GOAL_HEALTH_MS = 0.05, 100


@dataclass
class Talk:
    """One agent."""

    http: httpx.AsyncClient
    url: str
    token: str
    model: str
    messages: list[dict[str, Any]]
    took_s: list[float] = field(default_factory=list)
    """Of each turn, as the agent sees it."""

    async def turn(self) -> None:
        body = {"model": self.model, "messages": self.messages, "max_tokens": TOKENS}
        began = time.monotonic()
        answer = await self.http.post(
            f"{self.url}/chat/completions", json=body, headers={"authorization": f"Bearer {self.token}"}
        )
        self.took_s.append(time.monotonic() - began)
        answer.raise_for_status()
        said = answer.json()["choices"][0]["message"]
        self.messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "go on"}]

    async def turns(self, count: int, begin_s: float = 0.0) -> None:
        await asyncio.sleep(begin_s)
        for _ in range(count):
            await self.turn()


@dataclass(frozen=True)
class Cost:
    """Milliseconds of processor time per turn, by process."""

    whole: Mapping[str, float]
    idle: Mapping[str, float]
    """Of it, what the process would have needed without any turn."""


async def measure() -> None:
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        async with assembled(_shape(Path(folder)), (*PARTS, GATEWAY)) as assembly, _http(assembly) as http:
            talks = await _opened(assembly, http, AT_ONCE, "hello")
            await _talk(talks, WARM_UP)
            for talk in talks:
                talk.took_s.clear()
            cost = await _cost(assembly, talks)
            _print_added([value for talk in talks for value in talk.took_s], await _engine_s(assembly))
    _print_cost(cost)


async def _talk(talks: Sequence[Talk], turns: int) -> None:
    apart_s = TOKENS * TOKEN_S / len(talks)
    await asyncio.gather(*(talk.turns(turns, number * apart_s) for number, talk in enumerate(talks)))


async def _cost(assembly: Assembly, talks: Sequence[Talk]) -> Cost:
    """Of the sessions at rest, then in their turns."""
    pids, turns = assembly.pids(), len(talks) * TURNS
    before = cpu_seconds(pids)
    await asyncio.sleep(IDLE_S)
    idle = spent(before, cpu_seconds(pids))
    before, began = cpu_seconds(pids), time.monotonic()
    await _talk(talks, TURNS)
    whole, share = spent(before, cpu_seconds(pids)), (time.monotonic() - began) / IDLE_S
    return Cost(
        {name: 1000 * value / turns for name, value in whole.items()},
        {name: 1000 * value * share / turns for name, value in idle.items()},
    )


async def measure_many() -> None:
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        async with assembled(_shape(Path(folder)), (*PARTS, GATEWAY)) as assembly, _http(assembly) as http:
            talks = await _opened(assembly, http, MANY, "x" * HISTORY)
            gateway = psutil.Process(assembly.pids()[GATEWAY])
            health = asyncio.create_task(_health(http))
            for number in range(MANY_TURNS):
                await asyncio.gather(*(talk.turn() for talk in talks))
                print(f"   gateway after turn {number + 1}: {gateway.memory_info().rss / 1e6:.0f} MB", flush=True)
            health.cancel()
            found = await asyncio.gather(health, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
    took = [value for talk in talks for value in talk.took_s]
    slowest = 1000 * max(HEALTH)
    print(f"   {MANY} sessions of {HISTORY} tokens: {len(took)} turns answered of {MANY * MANY_TURNS}")
    print(f"   a turn: median {statistics.median(took):.2f} s, slowest {max(took):.2f} s")
    print(
        f"   health asked for {len(HEALTH)} times: median {1000 * statistics.median(HEALTH):.0f} ms, slowest "
        f"{slowest:.0f} ms = {slowest / GOAL_HEALTH_MS:.2f} of the goal of {GOAL_HEALTH_MS} ms"
    )


HEALTH: list[float] = []
"""Seconds that each answer took."""


async def _health(http: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(base_url=http.base_url) as alone:
        while True:
            began = time.monotonic()
            (await alone.get("/healthz")).raise_for_status()
            HEALTH.append(time.monotonic() - began)
            await asyncio.sleep(HEALTH_EVERY_S)


def _shape(folder: Path) -> Shape:
    return Shape(
        model=make_talking_model(folder / "model", CONTEXT),
        prompts=write_jsonl(folder / "prompts.jsonl", sums(64)),
        prompt_tokens=20,
        new_tokens=TOKENS,
        trajectories=1,
        instances=1,
        seqs=MANY,
        engine=SCRIPTED,
        script={"token_s": TOKEN_S},
        context_tokens=CONTEXT,
    )


def _http(assembly: Assembly) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=f"http://{assembly.stack.gateway_address}", timeout=300, limits=limits)


async def _opened(assembly: Assembly, http: httpx.AsyncClient, count: int, text: str) -> list[Talk]:
    headers = {"authorization": f"Bearer {await run_token(assembly.store, RUN)}"}
    talks = []
    for number in range(count):
        answer = await http.post("/sessions", headers=headers)
        answer.raise_for_status()
        found = answer.json()
        messages = [{"role": "user", "content": f"{number} {text}"}]
        talks.append(Talk(http, found["url"], found["token"], found["model"], messages))
    return talks


async def _engine_s(assembly: Assembly) -> float:
    """Median of a turn."""
    took = func.extract("epoch", Segment.finished_at - Segment.started_at)
    query = select(took).where(Segment.run_id == RUN, Segment.instance.is_not(None))
    async with assembly.store.connect() as connection:
        return statistics.median(float(value) for value in await connection.scalars(query))


def _print_added(took_s: Sequence[float], engine_s: float) -> None:
    added = sorted(1000 * (value - engine_s) for value in took_s)
    median, p99 = statistics.median(added), added[min(len(added) - 1, int(0.99 * len(added)))]
    print(
        f"   conditions: {AT_ONCE} sessions at the same time, {TURNS} turns each, {TOKENS} tokens, engine time "
        f"{1000 * engine_s:.0f} ms"
    )
    print(
        f"   added per turn: median {median:.0f} ms = {median / GOAL_MEDIAN_MS:.2f} of the goal, p99 {p99:.0f} ms = "
        f"{p99 / GOAL_P99_MS:.2f} of the goal"
    )


def _print_cost(cost: Cost) -> None:
    for name, value in sorted(cost.whole.items(), key=lambda item: -item[1]):
        print(f"   {name:14s} {value:7.2f} ms CPU per turn, {value - cost.idle[name]:7.2f} without its idle time")
    control = sum(cost.whole[name] for name in CONTROL)
    net = control - sum(cost.idle[name] for name in CONTROL)
    print(
        f"   server + orchestrator {control:.2f} ms = {control / GOAL_CPU_MS:.2f} of the goal of {GOAL_CPU_MS} ms; "
        f"without idle time {net:.2f} ms = {net / GOAL_CPU_MS:.2f}"
    )
