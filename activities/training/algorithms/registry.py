"""The algorithms there are, by the names that the configuration knows."""

from collections.abc import Mapping

from ....schemas.config import AdvantageEstimator, LossMode, RunConfig
from . import grpo, gspo, rloo, vanilla
from .algorithm import Algorithm, Estimator, Loss

ESTIMATORS: Mapping[AdvantageEstimator, Estimator] = {
    AdvantageEstimator.GRPO: grpo.advantages,
    AdvantageEstimator.RLOO: rloo.advantages,
}
LOSSES: Mapping[LossMode, Loss] = {
    LossMode.VANILLA: vanilla.policy_loss,
    LossMode.GSPO: gspo.policy_loss,
}


def algorithm_of(config: RunConfig) -> Algorithm:
    return Algorithm(config, ESTIMATORS[config.algorithm.adv_estimator], LOSSES[config.actor.policy_loss.loss_mode])
