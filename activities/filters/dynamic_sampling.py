"""Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): a group in which nothing differs teaches nothing.

Under a shaped reward the rewards of a group always differ a little, though all of its answers failed alike: the metric
then has to be one that says what counts, such as `acc`.
"""

from ...schemas.config import RunConfig
from ...schemas.config.algorithm import REWARD_ITSELF
from ...schemas.messages.rewards import ScoredGroup
from .contract import GroupFilter


def dynamic_sampling(config: RunConfig) -> GroupFilter:
    metric = config.algorithm.filter_groups.metric

    def judge(group: ScoredGroup) -> str | None:
        values = group.rewards if metric in REWARD_ITSELF else group.values(metric)
        if min(values) < max(values):
            return None
        name = "rewards" if metric in REWARD_ITSELF else f"values of {metric}"
        return f"all {len(values)} {name} are {values[0]:g}"

    return judge
