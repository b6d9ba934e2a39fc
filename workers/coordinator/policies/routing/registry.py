"""The policy of each routing method."""

from .....schemas.config import RoutingMethod
from .contract import RoutingPolicy
from .request_num_balance import request_num_balance
from .round_robin import round_robin
from .uniform import uniform

ROUTING: dict[RoutingMethod, RoutingPolicy] = {
    RoutingMethod.REQUEST_NUM_BALANCE: request_num_balance,
    RoutingMethod.ROUND_ROBIN: round_robin,
    RoutingMethod.RANDOM: uniform,
}
