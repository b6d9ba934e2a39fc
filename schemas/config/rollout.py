"""`rollout.*`: the engine and how it samples."""

from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from .base import Section


class RolloutDtype(StrEnum):
    """Number format of the engine's weights."""

    FP32 = "float32"
    """Exact agreement with a float32 trainer."""
    BF16 = "bfloat16"
    """Half the memory; expect a log-prob gap of 1e-3 to 1e-1."""


BF16_PROBE_TOLERANCE = 0.5


COLDEST = 0.01
"""The engine raises lower temperatures to this one, which would be another distribution than the trainer's."""


class ValSampling(Section):
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy; otherwise at least 0.01."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""
    top_k: int = Field(default=-1, ge=-1)
    """-1 or 0 is off."""
    n: int = Field(default=1, ge=1)
    """Answers per validation prompt; accuracy is the mean over all."""

    @model_validator(mode="after")
    def _as_the_engine_samples(self) -> Self:
        if 0 < self.temperature < COLDEST:
            raise ValueError(
                f"rollout.val.temperature={self.temperature:g}: the engine would sample at {COLDEST:g}; allowed: 0 "
                f"(greedy), or at least {COLDEST:g}"
            )
        return self


class RolloutSection(Section):
    temperature: float = Field(default=1.0, ge=COLDEST)
    """Sampling temperature; log-probs are of the distribution after it. The engine knows none below 0.01."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. Only 1, which is off: training needs samples of the whole distribution (see
    docs/decisions/sampling.md)."""
    top_k: int = Field(default=-1, ge=-1)
    """Only -1 or 0, which are off, for the same reason."""
    dtype: RolloutDtype = RolloutDtype.BF16
    kv_cache_gb: float = Field(default=1.0, gt=0)
    """KV cache of one instance in GB (exact, not whole GiB)."""
    block_size: int = Field(default=32, ge=1)
    """KV block in tokens; vLLM on CPU wants a multiple of 32."""
    enforce_eager: bool = True
    """No graph capture or compilation: starts in seconds."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context of the engine; null takes prompt + response length."""
    weight_probe_tolerance: float = Field(default=1e-3, gt=0)
    """Largest |log-prob difference| between engine and trainer on the probe tokens after a pull. Without a value 0.5
    with bfloat16, where rounding alone gives up to 0.3."""
    stall_timeout_s: float = Field(default=60, gt=0)
    """An engine whose process is alive but that gives no sign of life for this long (no token, no answer between two
    of its steps) is killed and restarted. One step, such as a piece of a long prefill, must fit in it."""
    val: ValSampling = ValSampling()

    @model_validator(mode="after")
    def _whole_distribution(self) -> Self:
        for key, value, allowed, off in (
            ("top_p", self.top_p, "1", self.top_p == 1),
            ("top_k", self.top_k, "-1 or 0", self.top_k < 1),
        ):
            if not off:
                raise ValueError(
                    f"rollout.{key}={value} samples from a part of the distribution, while the trainer's log-probs are "
                    f"of the whole: every probability ratio would be biased; allowed: {allowed} (off). "
                    "rollout.temperature narrows sampling without a bias"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _probe_tolerance(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "weight_probe_tolerance" in values:
            return values
        rounded = values.get("dtype", RolloutDtype.BF16) == RolloutDtype.BF16
        return {**values, "weight_probe_tolerance": BF16_PROBE_TOLERANCE} if rounded else values
