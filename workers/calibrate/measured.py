"""What was measured of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of the engine, at a load."""

    requests: int
    kv_tokens: float
    """Prompts and sampled tokens of all of them."""
    seconds: float
