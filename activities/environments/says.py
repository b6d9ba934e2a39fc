"""What an environment may say. Anything else is a failure of the environment, told in one line."""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from ...schemas.errors import ConversationRefused, UserCodeFailed
from ...schemas.text import shown
from ..capture.messages import ASSISTANT, read_messages
from .environment import Step

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""As JSON writes it."""


def require_step(returned: Any) -> Step:
    """Raises `UserCodeFailed`."""
    if not isinstance(returned, Step):
        raise UserCodeFailed(f"step returned {shown(returned)}; allowed: a Step")
    reward = returned.reward
    if reward is not None and not (isinstance(reward, int | float) and isfinite(reward)):
        raise UserCodeFailed(f"Step.reward={shown(reward)}; allowed: a finite number, or None")
    if not isinstance(returned.info, Mapping):
        raise UserCodeFailed(f"Step.info={shown(returned.info)}; allowed: an object")
    require_json("Step.info", dict(returned.info))
    if isinstance(returned.messages, str):
        raise UserCodeFailed(f"Step.messages={shown(returned.messages)}; allowed: messages, as user_says makes them")
    try:
        said = read_messages(list(returned.messages))
    except ConversationRefused as refusal:
        raise UserCodeFailed(f"Step.{refusal}") from refusal
    if any(message.role == ASSISTANT for message in said):
        raise UserCodeFailed("Step.messages has one of the assistant; allowed: what others say")
    return returned


def require_json(what: str, value: Any) -> Any:
    """As it will be read back. Raises `UserCodeFailed` for what the store does not keep."""
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False)
        written.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserCodeFailed(f"{what} is {shown(value)}, which is no JSON: {error}") from error
    if NUL.search(written):
        raise UserCodeFailed(f"{what} is {shown(value)}, which has the character NUL in it")
    return json.loads(written)
