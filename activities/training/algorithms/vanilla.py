"""`vanilla`: PPO's clipped surrogate, token by token (arXiv:1707.06347, eq. 7), with two clip ranges (arXiv:2503.14476,
eq. 10)."""

from ....schemas.config import ActorSection
from .algorithm import PolicyLoss, Tokens, clipped_surrogate, held_log_ratio


def policy_loss(tokens: Tokens, config: ActorSection) -> PolicyLoss:
    ratio = held_log_ratio(tokens.new - tokens.old).exp()
    return clipped_surrogate(ratio, tokens.advantage, config)
