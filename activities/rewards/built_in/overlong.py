"""`overlong`: DAPO's soft penalty for answers that come near the greatest length (arXiv:2503.14476, equation 13)."""

from ....schemas.config.built_in_rewards import OverlongOptions
from ....schemas.messages.rewards import RewardSample
from .contract import BuiltIn


class Overlong(BuiltIn):
    def __init__(self, options: OverlongOptions) -> None:
        self._options = options

    def __call__(self, sample: RewardSample) -> dict[str, float]:
        options, length = self._options, len(sample.response_ids)
        exceeds = length - (options.max_response_length - options.buffer_length)
        return {"score": min(-exceeds / options.buffer_length * options.factor, 0.0), "hit": float(exceeds > 0)}
