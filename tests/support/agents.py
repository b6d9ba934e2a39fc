"""Agents as users write them, well and badly."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI, OpenAI

from psrl.schemas.messages.agents import AgentTask


def client_of(task: AgentTask) -> OpenAI:
    return OpenAI(base_url=task.base_url, api_key=task.api_key)


def nothing(task: AgentTask) -> None:
    print("about to do nothing for", task.session_id)


async def nothing_async(task: AgentTask) -> None:
    await asyncio.sleep(0)


def half(task: AgentTask) -> float:
    return 0.5


def dropped(task: AgentTask) -> dict[str, Any]:
    return {"drop": "the repository could not be cloned"}


async def with_info(task: AgentTask) -> dict[str, Any]:
    return {"reward": 1, "info": {"row": task.extra.get("row"), "prompt": task.prompt}}


def text(task: AgentTask) -> str:
    return "done"


def wrong_key(task: AgentTask) -> dict[str, Any]:
    return {"rewrad": 1.0}


def not_json(task: AgentTask) -> dict[str, Any]:
    return {"info": {"at": object()}}


def raises(task: AgentTask) -> None:
    print("thinking")
    raise ValueError("no idea")


async def raises_async(task: AgentTask) -> None:
    raise ValueError("no idea")


def out_of_room(task: AgentTask) -> None:
    raise RuntimeError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}")


def ends_its_process(task: AgentTask) -> None:
    sys.stdout.flush()
    os._exit(3)


def talks_without_end(task: AgentTask) -> None:
    line = "x" * 1000
    for _ in range(4000):
        print(line)
    print("the end")
    raise ValueError("hoarse")


PATIENCE_S = 120.0
HANGING = "HANGING_AGENTS"
"""Names the folder in which agents that hang leave their process ids and those of their children."""


def hangs(task: AgentTask) -> None:
    """With a child in a session of its own, as tools that run commands start theirs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    own = Path(os.environ[HANGING]) / task.session_id
    own.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
    own.with_suffix(".new").rename(own)
    time.sleep(600)


def until_hanging(folder: Path, count: int = 1) -> None:
    _until(lambda: len(_left_in(folder)) >= count)


def gone(folder: Path) -> bool:
    """Every agent that hung, with its child."""
    ids = [int(pid) for file in _left_in(folder) for pid in file.read_text().split()]
    alive = [psutil.Process(pid) for pid in ids if psutil.pid_exists(pid)]
    # One that was killed may not have been waited for by whoever inherited it.
    return bool(ids) and all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def until_gone(folder: Path) -> None:
    _until(lambda: gone(folder))


def _until(condition: Callable[[], bool]) -> None:
    """In a thread, which no timeout of a test ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _left_in(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.suffix != ".new"]


def asks_once(task: AgentTask) -> float:
    with client_of(task) as client:
        answer = client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": task.prompt}])
    return float(len(answer.choices[0].message.content or ""))


def asks_and_drops(task: AgentTask) -> dict[str, Any]:
    asks_once(task)
    return {"drop": "not worth it"}


async def asks_three_times(task: AgentTask) -> None:
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for question in ("and then?", "and then?", ""):
            answer = await client.chat.completions.create(model=task.model, messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": question})


def fails_the_first_time(task: AgentTask) -> None:
    asks_once(task)
    if "." not in task.session_id:
        raise ValueError("not today")


def asks_and_hangs(task: AgentTask) -> None:
    asks_once(task)
    hangs(task)


def hangs_the_first_time(task: AgentTask) -> None:
    asks_once(task)
    if "." not in task.session_id:
        hangs(task)
