"""A process that dies while it works is noticed within seconds, whatever it was doing (L11)."""

import ast
from pathlib import Path

WORKFLOWS = Path(__file__).parents[3] / "workflows"
LONGEST = "SHORT"
"""An activity that may take longer than this setting must heartbeat."""


def test_every_activity_that_may_take_long_has_a_heartbeat_timeout() -> None:
    silent = []
    for file in sorted(WORKFLOWS.glob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "execute_activity":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                brief = options.get("start_to_close_timeout", "") == f"settings.{LONGEST}"
                passed_on = None in options  # by a wrapper, whose callers are looked at
                if not (brief or passed_on) and "heartbeat_timeout" not in options:
                    silent.append(f"{file.name}:{call.lineno} {options.get('summary')}")
    assert silent == []
