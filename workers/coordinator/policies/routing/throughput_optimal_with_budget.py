"""The waterfall by what requests are expected to become: every response counts as a whole number of `request_budget`
tokens, of those in the engine and of the one to be placed.

The snapshot already counts so: its `need`, and the `kv_tokens` of its candidates (`expected`).
"""

from .contract import Candidate, RoutingSnapshot
from .throughput_optimal import throughput_optimal


def throughput_optimal_with_budget(snapshot: RoutingSnapshot) -> Candidate | None:
    return throughput_optimal(snapshot)


def expected(prompt: int, sampled: int, budget: int) -> int:
    """Tokens of a request that has sampled so many of its response: it goes on until the budget that its next token
    falls into is used up."""
    return prompt + (sampled // budget + 1) * budget
