"""`gspo`: the clipped surrogate of a whole sequence's ratio, normalised by its length (arXiv:2507.18071, eq. 5 to 7),
in the token form of eq. 13 to 15, whose gradient is the same when all tokens of a sequence share an advantage.

The value of every token's ratio is its sequence's, `s = exp(mean(new - old))`; its gradient goes through its own
log-prob.
"""

import torch

from ....schemas.config import ActorSection
from .algorithm import PolicyLoss, Tokens, clipped_surrogate, held_log_ratio


def policy_loss(tokens: Tokens, config: ActorSection) -> PolicyLoss:
    _, owner, lengths = tokens.sequence.unique(return_inverse=True, return_counts=True)
    moved = (tokens.new - tokens.old).detach()
    sums = torch.zeros(len(lengths), dtype=moved.dtype, device=moved.device).index_add_(0, owner, moved)
    of_sequence = held_log_ratio(sums / lengths).exp()
    ratio = of_sequence[owner] * (tokens.new - tokens.new.detach()).exp()
    return clipped_surrogate(ratio, tokens.advantage, config)
