"""What an engine costs: the time of one of its steps, by requests and KV tokens. Fitted by `psrl calibrate`; asked by
the routing and sync policies and by the simulator.

The file (`psrl.rollout_coordination.routing_strategy.cost_model_path`) is JSON with an entry per parallel layout,
`TP{n}_PP{m}`; times are seconds. A file that is not there, or has no entry for the engine, is a user's mistake that is
found before anything starts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from .config.base import told
from .errors import ConfigError
from .messages.base import Message

KEY = "psrl.rollout_coordination.routing_strategy.cost_model_path"


class CostModel(Message):
    """One step of an engine with n running requests and t tokens in its KV cache takes
    `attn_latency_b + attn_latency_k * t + max(other_threshold, other_latency_b + other_latency_k * n)`, and gives n
    tokens."""

    other_threshold: float = Field(ge=0, allow_inf_nan=False)
    """Seconds that everything but attention takes however few requests there are."""
    other_latency_b: float = Field(allow_inf_nan=False)
    other_latency_k: float = Field(ge=0, allow_inf_nan=False)
    """Per request."""
    attn_latency_b: float = Field(ge=0, allow_inf_nan=False)
    attn_latency_k: float = Field(ge=0, allow_inf_nan=False)
    """Per token in the KV cache."""

    @model_validator(mode="after")
    def _a_step_takes_time(self) -> Self:
        if self.latency(1, 0) <= 0:
            raise ValueError(f"a step of one request would take {self.latency(1, 0):g} s; allowed: more than 0")
        return self

    def latency(self, n: int, t: float) -> float:
        """Seconds of one step."""
        other = max(self.other_threshold, self.other_latency_b + self.other_latency_k * n)
        return self.attn_latency_b + self.attn_latency_k * t + other

    def at_speed(self, speed: float) -> Self:
        """Of an engine that is so many times as fast."""
        return type(self)(**{name: getattr(self, name) / speed for name in COEFFICIENTS})

    def throughput(self, n: int, t: float) -> float:
        """Tokens per second."""
        return n / self.latency(n, t) if n else 0.0

    def gain(self, n: int, t: float, need: float) -> float:
        """Tokens per second that a further request of `need` tokens adds. Negative where it slows the others down by
        more than it gives."""
        return self.throughput(n + 1, t + need) - self.throughput(n, t)


COEFFICIENTS = tuple(name for name in CostModel.model_fields if name != "schema_version")


def layout(tensor_parallel: int = 1, pipeline_parallel: int = 1) -> str:
    """The name of an engine's entry."""
    return f"TP{tensor_parallel}_PP{pipeline_parallel}"


def read_cost_model(path: str, entry: str) -> CostModel:
    """Raises `ConfigError`."""
    return cost_model_of(_read(path), entry, path)


def cost_model_of(entries: Mapping[str, Any], entry: str, path: str) -> CostModel:
    """The engine's own among the file's."""
    if entry not in entries:
        raise ConfigError(f"{KEY}={path} has no entry {entry!r} for this engine; it has: {', '.join(sorted(entries))}")
    try:
        return CostModel.model_validate(entries[entry])
    except ValidationError as error:
        lines = [line for item in error.errors() for line in told(item, entry)]
        raise ConfigError(f"{KEY}={path}: {'; '.join(lines)}") from error


def _read(path: str) -> Mapping[str, Any]:
    try:
        entries = json.loads(Path(path).expanduser().read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise ConfigError(f"{KEY}={path} cannot be read ({why}); `psrl calibrate` writes such a file") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"{KEY}={path} holds no JSON object; allowed: an entry per layout, such as {layout()!r}")
    return entries
