"""Programs that the policy writes, as it reads of them afterwards."""

import os
from typing import Any

import psutil
import pytest

from psrl.activities.environments.environment import Action, Task, ToolCall
from psrl.activities.environments.tools.environment import tool_environment
from psrl.schemas.config.agentic import AgenticSection
from psrl.schemas.config.sandbox import SandboxLimits

TASK = Task(prompt_text="", messages=None, data_source="", ground_truth=None, extra={}, seed=0)
MARK = "time.sleep(4242)"
LIMITS = SandboxLimits(wall_s=2, cpu_s=2, memory_mb=128, processes=8, output_bytes=1000)


async def ran(code: Any, **limits: Any) -> str:
    section = AgenticSection(
        environment="tools",
        tool_parser="hermes",
        tools=("code_runner",),
        code_runner=LIMITS.model_copy(update=limits),
        max_tool_response_length=2000,
    )
    environment = tool_environment(section)
    await environment.reset(TASK)
    step = await environment.step(Action(0, "", (ToolCall("c", "run_python", {"code": code}),)))
    return str(step.messages[0]["content"])


async def test_the_policy_reads_what_its_program_prints() -> None:
    assert await ran("print(sum(range(10)))") == "45"
    assert await ran("x = 1") == "(it printed nothing)"


async def test_an_exception_is_read_like_any_output() -> None:
    said = await ran("print('before')\n1 / 0")
    assert said.startswith("before\nTraceback")
    assert said.endswith("ZeroDivisionError: division by zero\n(exit status 1)")


@pytest.mark.parametrize(
    ("code", "limits", "told"),
    [
        ("while True: pass", {"wall_s": 0.5}, "(ended: more than 0.5 s of time)"),
        ("print('x' * 100_000)", {}, "(ended: more than 1000 bytes of output)"),
    ],
)
async def test_a_limit_ends_it_and_is_named(code: str, limits: dict[str, Any], told: str) -> None:
    assert (await ran(code, **limits)).endswith(told)


async def test_memory_beyond_the_limit_is_not_to_be_had() -> None:
    said = await ran("print(len(bytearray(1 << 30)))")
    assert "MemoryError" in said or "of memory" in said


async def test_nothing_of_it_outlives_the_call_and_nothing_of_ours_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "1")
    code = (
        "import os, subprocess, sys\n"
        "print(os.environ.get('SECRET_OF_THE_WORKER'), sorted(os.listdir('.')))\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(4242)'])\n"
    )
    assert await ran(code) == "None ['main.py']"
    assert not [process for process in psutil.process_iter(["cmdline"]) if MARK in str(process.info["cmdline"])]
    assert os.environ["SECRET_OF_THE_WORKER"] == "1"


async def test_a_call_without_code_is_told_what_is_allowed() -> None:
    assert await ran(7) == "error: allowed: one argument, code, which is text"
