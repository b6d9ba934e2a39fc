"""Environment variables in values, as shells write them. Called by `files.py` before anything is resolved.

`$NAME`, `${NAME}` and `${NAME:-default}` become OmegaConf's `${oc.env:NAME}` and `${oc.env:NAME,default}`. Names are in
capitals: `${name}` and `${section.key}` are OmegaConf's own, another key's value. `\\$NAME` stays what it says.
"""

import re
from typing import Any

VARIABLE = re.compile(
    r"\\\$(?=[A-Z_])"
    r"|(?<!\\)\$(?:(?P<bare>[A-Z_][A-Z0-9_]*)|\{(?P<braced>[A-Z_][A-Z0-9_]*)(?::-(?P<default>[^{}]*))?\})"
)


def with_variables(value: Any) -> Any:
    """The same value, or mapping or list of values, as OmegaConf understands it."""
    if isinstance(value, dict):
        return {key: with_variables(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_variables(inner) for inner in value]
    return VARIABLE.sub(_as_resolver, value) if isinstance(value, str) else value


def _as_resolver(found: re.Match[str]) -> str:
    name, default = found["bare"] or found["braced"], found["default"]
    if name is None:
        return "$"
    if default is None:
        return f"${{oc.env:{name}}}"
    quoted = default.replace("\\", "\\\\").replace("'", "\\'")
    return f"${{oc.env:{name},'{quoted}'}}"
