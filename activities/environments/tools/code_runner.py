"""The built-in tool `code_runner`: the policy's own Python program, run in a sandbox.

Promise: whatever the program does, it is over, and gone with all it started, when the call is; its limits are those of
`psrl.agentic_rl.code_runner`. Each call begins with an empty folder: nothing is kept from one to the next.
"""

from collections.abc import Mapping
from typing import Any

from ....schemas.config.sandbox import SandboxLimits
from ...user_code.sandbox import PYTHON, Ran, run
from .tool import BadCall, function_schema

NAME = "code_runner"
"""In `psrl.agentic_rl.tools`."""
FILE = "main.py"
COMMAND = (PYTHON, "-I", "-X", "utf8", FILE)
"""What the policy writes finds no module beside it, and no setting of the worker's user."""


class CodeRunner:
    name = "run_python"
    repeatable = True
    schema = function_schema(
        name,
        "Runs a Python program and gives back what it prints. Nothing is kept from one call to the next.",
        {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the whole program"}},
            "required": ["code"],
        },
    )

    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits

    async def call(self, arguments: Mapping[str, Any]) -> str:
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) > 1:
            raise BadCall("allowed: one argument, code, which is text")
        return told(await run(COMMAND, files={FILE: code}, limits=self._limits), self._limits)


def told(ran: Ran, limits: SandboxLimits) -> str:
    """What the policy reads of it."""
    parts = [text.rstrip("\n") for text in (ran.stdout, ran.stderr) if text.strip()]
    if ran.killed_by:
        allowed = {"time": f"{limits.wall_s:g} s", "cpu": f"{limits.cpu_s:g} s", "memory": f"{limits.memory_mb} MB"}
        limit = allowed.get(ran.killed_by, f"{limits.output_bytes} bytes")
        parts.append(f"(ended: more than {limit} of {ran.killed_by})")
    elif ran.exit:
        parts.append(f"(exit status {ran.exit})")
    return "\n".join(parts) or "(it printed nothing)"
