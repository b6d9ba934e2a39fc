"""The base of every message between parts."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ..text import MAX_SAID, storable


def _storable(value: Any) -> Any:
    return storable(value, MAX_SAID) if isinstance(value, str) else value


Said = Annotated[str, BeforeValidator(_storable)]
"""What an engine, a library or a user's function said of its failure: made storable and short, so that it never is a
reason for a message to fail."""


class Message(BaseModel):
    """Small, frozen and versioned: ids and counts, never tokens or tensors.

    `schema_version` rises when a field changes its meaning; a reader ignores fields it does not know, so that
    hosts and orchestrators of neighbouring releases understand each other. A number that is not finite (the loss of a
    diverged step) crosses as the text "NaN": JSON has no such number, and null would not be read back.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    schema_version: int = 1
