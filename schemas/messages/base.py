"""The base of every message between parts."""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Small, frozen and versioned: ids and counts, never tokens or tensors.

    `schema_version` rises when a field changes its meaning; a reader ignores fields it does not know, so that
    hosts and orchestrators of neighbouring releases understand each other.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = 1
