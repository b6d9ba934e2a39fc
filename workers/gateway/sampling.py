"""How a turn samples. What is trained on is sampled as the run says, since log-probs are compared with those of the
trainer; a session that trains nothing may sample as its caller likes."""

from dataclasses import dataclass

from ...activities.sessions.starts import settings_of
from ...schemas.messages.data import Purpose
from ...schemas.messages.rollout import Sampling
from .models import Model


@dataclass(frozen=True)
class Wish:
    """What a request says of sampling; None: nothing."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    unheeded: tuple[str, ...] = ()
    """Names of what else it says, which no session heeds."""


FREE = ("temperature", "top_p", "top_k")


def sampling_of(model: Model, purpose: Purpose, wish: Wish, prompt_tokens: int) -> tuple[Sampling, tuple[str, ...]]:
    """And the names of what is not heeded. The answer ends with the context at the latest."""
    rule = settings_of(model.config, purpose).sampling
    room = max(1, model.config.context_tokens - prompt_tokens)
    asked = {name: value for name in FREE if (value := getattr(wish, name)) is not None}
    differing = {name: value for name, value in asked.items() if value != getattr(rule, name)}
    tokens = min(room, wish.max_tokens or rule.max_tokens)
    if purpose is Purpose.OUTSIDE:
        return rule.model_copy(update={**differing, "max_tokens": tokens}), wish.unheeded
    return rule.model_copy(update={"max_tokens": tokens}), (*differing, *wish.unheeded)
