"""The probe of a version: a fixed token sequence and the trainer's log-probs of it, which an engine that loaded the
version must reproduce, and a rebuilt trainer too."""

from typing import Any

import torch

from ...schemas.config import RunConfig
from ...schemas.weights import WeightProbe

PROBE_TOKENS = 16


def probe_ids(vocabulary: int, context: int) -> tuple[int, ...]:
    """Spread over the vocabulary, the same for every version; short enough that an engine can still sample one token
    after it."""
    length = max(2, min(PROBE_TOKENS, context - 1))
    # A stride of about the golden ratio visits distant ids in turn and, for a prime offset, few of them twice.
    stride = max(1, int(vocabulary * 0.618))
    return tuple((7 + i * stride) % vocabulary for i in range(length))


def weight_probe(model: Any, tokenizer: Any, config: RunConfig) -> WeightProbe:
    """In float32 at temperature 1, whatever the run's precision and temperature are."""
    vocabulary = min(len(tokenizer), int(model.config.get_text_config().vocab_size))
    ids = probe_ids(vocabulary, config.context_tokens)
    tokens = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        log_probs = model(input_ids=tokens, use_cache=False).logits[0].float().log_softmax(-1)
    of_next = log_probs[:-1].gather(1, tokens[0, 1:, None]).squeeze(1)
    return WeightProbe(token_ids=ids, logprobs=tuple(of_next.tolist()))
