"""The policy of each routing method, and what a request waits for when its policy takes no instance."""

from .....schemas.config import RoutingMethod
from .cache_aware import cache_aware
from .cache_aware_v1 import cache_aware_v1
from .contract import RoutingPolicy
from .request_num_balance import request_num_balance
from .round_robin import round_robin
from .throughput_optimal import throughput_optimal
from .throughput_optimal_with_budget import throughput_optimal_with_budget
from .uniform import uniform

ROUTING: dict[RoutingMethod, RoutingPolicy] = {
    RoutingMethod.REQUEST_NUM_BALANCE: request_num_balance,
    RoutingMethod.ROUND_ROBIN: round_robin,
    RoutingMethod.RANDOM: uniform,
    RoutingMethod.THROUGHPUT_OPTIMAL: throughput_optimal,
    RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET: throughput_optimal_with_budget,
    RoutingMethod.CACHE_AWARE: cache_aware,
    RoutingMethod.CACHE_AWARE_V1: cache_aware_v1,
}

WAITS_FOR = {
    RoutingMethod.THROUGHPUT_OPTIMAL: "an instance that it would give enough throughput",
    RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET: "an instance that it would give enough throughput",
    RoutingMethod.CACHE_AWARE_V1: "room in a KV cache",
}
"""Of policies that may take none."""
