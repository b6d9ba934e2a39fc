"""An agent for `psrl.agentic_rl.agent`: mini-swe-agent repairs one function of a tiny repository.

    pip install "mini-swe-agent>=2.4,<3"

The library is used as it comes: its agent, its local environment, its client. What it is worth is what the function's
own test says afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psrl.schemas.messages.agents import AgentTask

REPOSITORY = Path(__file__).parent / "repository"
CHECK = "check_wordcount"
STEPS = 6
COMMAND_S, CHECK_S = 20, 60
SYSTEM = "Answer with one shell command in a block:\n```mswea_bash_command\nCOMMAND\n```"
INSTANCE = "{{task}} When done: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def solve(task: AgentTask) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mini-swe-agent-") as folder:
        repository = Path(folder) / "repository"
        shutil.copytree(REPOSITORY, repository)
        ended, steps = repair(task, repository)
        return {"reward": float(checked(repository, task.extra["test"])), "info": {"ended": ended, "steps": steps}}


def repair(task: AgentTask, repository: Path) -> tuple[str, int]:
    """How the agent ended, and how often it asked."""
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # the table of prices is not asked for on the net
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    model = LitellmTextbasedModel(
        model_name=f"openai/{task.model}",
        model_kwargs={"api_base": task.base_url, "api_key": task.api_key},
        cost_tracking="ignore_errors",
    )
    environment = LocalEnvironment(cwd=str(repository), timeout=COMMAND_S)
    limits = {"step_limit": STEPS, "cost_limit": 0}
    agent = DefaultAgent(model, environment, system_template=SYSTEM, instance_template=INSTANCE, **limits)
    ended = agent.run(task.prompt if task.messages is None else task.messages[-1]["content"])
    return str(ended.get("exit_status", "")), agent.n_calls


def checked(repository: Path, test: str) -> bool:
    """Whether the test passes, in its own words: the agent may have changed them."""
    shutil.copy(REPOSITORY / f"{CHECK}.py", repository)
    command = [sys.executable, "-m", "unittest", f"{CHECK}.WordCount.{test}"]
    try:
        return subprocess.run(command, cwd=repository, timeout=CHECK_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
