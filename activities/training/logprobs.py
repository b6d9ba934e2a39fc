"""Log-probs of sampled tokens under the trainer's weights, and their gap to the engine's.

Both sides mean the same distribution, that of the whole vocabulary after `rollout.temperature`: sampling from a part of
it (`rollout.top_p`, `rollout.top_k`) is refused, because ratio and gap would then compare two distributions.
"""

from typing import Any, NamedTuple

from torch import Tensor

from .packing import MicroBatch


class Gap(NamedTuple):
    mean_abs: float
    max_abs: float
    k3: float
    """mean(exp(d) - 1 - d), d = old - rollout: estimates KL(rollout || old)."""


def micro_batch_logits(model: Any, micro: MicroBatch, temperature: float) -> Tensor:
    """[tokens, vocabulary] in float32, one row per trainable token, divided by the temperature."""
    logits = model(input_ids=micro.input_ids, use_cache=False, logits_to_keep=micro.logits_to_keep).logits
    chosen = logits.reshape(-1, logits.shape[-1]).index_select(0, micro.predicted_at)
    return chosen.float() / temperature


def target_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-prob of each row's target, without a second [tokens, vocabulary] tensor."""
    return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - logits.logsumexp(1)


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each row's distribution, in nats."""
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1)


def log_prob_gap(old: Tensor, rollout: Tensor) -> Gap:
    """Over all trainable tokens; zeros when there is none."""
    if not old.numel():
        return Gap(0.0, 0.0, 0.0)
    gap = (old - rollout).double()
    return Gap(float(gap.abs().mean()), float(gap.abs().max()), float((gap.exp() - 1 - gap).mean()))
