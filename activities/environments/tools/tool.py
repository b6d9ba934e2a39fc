"""One tool that the policy may call, whoever runs it.

Promise: whatever a tool does, the policy gets text: what it returned, or what went wrong.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from ....schemas.config.agentic import TruncateSide
from ....schemas.text import storable

MARK = "...(truncated)..."
MAX_RESULT = 1_000_000


class Tool(Protocol):
    name: str
    schema: dict[str, Any]
    """As the chat template shows it: `{"type": "function", "function": {...}}`."""
    repeatable: bool
    """As in `Environment`."""

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Raises anything; `BadCall` for arguments that it does not take."""


class BadCall(Exception):
    """The policy called a tool as it cannot be called."""


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def as_text(returned: Any) -> str:
    """What is no text becomes JSON, as far as it can."""
    text = returned if isinstance(returned, str) else json.dumps(returned, default=str, ensure_ascii=False)
    return storable(text, MAX_RESULT)


def shortened(text: str, limit: int, side: TruncateSide) -> str:
    """Characters beyond the limit are left out; `side` says which part is kept."""
    if len(text) <= limit:
        return text
    if side is TruncateSide.LEFT:
        return text[:limit] + MARK
    if side is TruncateSide.RIGHT:
        return MARK + text[len(text) - limit :]
    first = limit - limit // 2
    return text[:first] + MARK + text[len(text) - limit // 2 :]
