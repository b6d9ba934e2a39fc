"""Instances as policies see them, for tests: by hand, and any that a host could report."""

from typing import Any

from hypothesis import strategies as st

from psrl.schemas.cost_model import CostModel
from psrl.schemas.ids import InstanceId
from psrl.workers.coordinator.policies.load import InstanceLoad, RequestLoad

COST = CostModel(
    other_threshold=0.0064,
    other_latency_b=0.0027,
    other_latency_k=0.0001231,
    attn_latency_b=0.0028,
    attn_latency_k=3.35e-8,
)


def load(number: int, requests: int = 0, tokens: int = 100, slots: int = 64, **more: Any) -> InstanceLoad:
    """With so many requests of equal length; what does not fit its slots waits."""
    name = InstanceId(f"rollout-{number}")
    running, capacity = min(requests, slots), 100_000
    values = {
        "version": 0,
        "serving": True,
        "running": running,
        "waiting": requests - running,
        "throughput": 10.0 * running,
        "kv_usage": requests * tokens / capacity,
        "kv_capacity": capacity,
        "requests": [RequestLoad(f"{name}-{i}", 0, tokens) for i in range(requests)],
        "cost": COST,
    }
    return InstanceLoad(instance=name, slots=slots, **{**values, **more})


@st.composite
def loads(draw: st.DrawFn, most: int = 4) -> list[InstanceLoad]:
    """A fleet, sorted by name."""
    fleet = []
    for number in range(draw(st.integers(1, most))):
        slots, capacity = draw(st.integers(1, 8)), 1000
        lengths = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=12))
        name = InstanceId(f"rollout-{number}")
        requests = [RequestLoad(f"{name}-{i}", *length) for i, length in enumerate(lengths)]
        on_the_way = draw(st.integers(0, 2))
        fleet.append(
            InstanceLoad(
                instance=name,
                version=draw(st.integers(0, 3)),
                serving=draw(st.sampled_from([True, True, True, False])),
                slots=slots,
                running=min(len(requests), slots),
                waiting=max(0, len(requests) - slots) + on_the_way,
                throughput=draw(st.floats(0, 100)),
                kv_usage=min(1.0, sum(one.tokens for one in requests) / capacity),
                kv_capacity=capacity,
                requests=requests,
                pull_s=draw(st.floats(0, 10)),
                cost=draw(st.sampled_from([COST, None])),
            )
        )
    return fleet
