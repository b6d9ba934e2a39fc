"""The rewards that come with PSRL, by name."""

from collections.abc import Callable
from typing import Any

from ....schemas.config import RewardSection
from ....schemas.config.built_in_rewards import OPTIONS, BuiltInReward
from ....schemas.errors import RewardLoadError
from .code_tests import CodeTests
from .contract import BuiltIn
from .llm_judge import LlmJudge
from .outcome import Outcome
from .overlong import Overlong

MAKE: dict[str, Callable[[Any], BuiltIn]] = {
    BuiltInReward.CODE_TESTS: CodeTests,
    BuiltInReward.LLM_JUDGE: LlmJudge,
    BuiltInReward.OVERLONG: Overlong,
    BuiltInReward.OUTCOME: Outcome,
}


def built_in(reward: RewardSection, key: str) -> BuiltIn | None:
    """None for a function of the user's. Raises `RewardLoadError`."""
    make = MAKE.get(reward.function)
    if make is None:
        return None
    try:
        return make(OPTIONS[reward.function].model_validate(reward.kwargs))
    except RewardLoadError as refusal:
        raise RewardLoadError(f"{key}.kwargs.{refusal}") from refusal
