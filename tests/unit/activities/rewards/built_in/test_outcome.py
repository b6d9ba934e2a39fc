"""What an episode's environment or agent says, as a part of a reward."""

from psrl.activities.rewards.weighted import RewardCalls
from psrl.schemas.config import RewardSection
from tests.support.rewards import answered


async def test_it_is_weighed_against_others_with_the_numbers_of_its_info() -> None:
    functions = {"own": {"function": "outcome", "weight": 2}, "length": {"function": "tests.support.rewards:length"}}
    reward = {"functions": functions, "max_attempts": 1, "isolation": "thread"}
    calls = RewardCalls(RewardSection.model_validate(reward))
    samples = [answered("abc", outcome_reward=0.5, outcome_info={"steps": 4, "note": "x"}), answered("a")]
    said, silent = await calls.score([0, 1], samples)
    assert (said.reward, said.metrics) == (4.0, {"own": 0.5, "own/steps": 4.0, "length": 3.0})
    assert (silent.reward, silent.error) == (None, "own: the environment or the agent gave no reward")
