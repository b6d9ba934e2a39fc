"""What the coordinator's decisions cost in processor time, without the network: 64 instances of 64 slots.

Goals on one core: 5,000 placements per second by each method; `PlanDispatch` within 100 ms at the 99th percentile while
2,048 requests run and 2,048 calls wait; a report within 2 ms meanwhile.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable

from psrl.schemas.config import RoutingMethod, RoutingStrategy
from psrl.schemas.cost_model import CostModel
from psrl.schemas.ids import GroupId, RunId, instance_id
from psrl.schemas.messages.rollout import DispatchPlanRequest, InstanceReport, InstanceState, RouteRequest
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.waiting import RouteQueue

RUN = RunId("bench")
INSTANCES, SLOTS, WAITING, GROUP, VERSION = 64, 64, 2048, 8, 3
DECISIONS, PLANS, REPORTS = 5000, 1000, 640
GOAL_PER_S, GOAL_PLAN_MS, GOAL_REPORT_MS = 5000, 100, 2
COST = CostModel(
    other_threshold=0.0064, other_latency_b=0.0027, other_latency_k=1e-4, attn_latency_b=0.0028, attn_latency_k=3e-8
)


async def measure() -> None:
    for method in RoutingMethod:
        per_s = _per_second(method)
        print(f"   {method:<32} {per_s:8,.0f} placements per second (goal {GOAL_PER_S:,})")
    plan_ms, report_ms = await _while_many_wait()
    print(f"   PlanDispatch, {WAITING:,} calls waiting    {plan_ms:8.2f} ms p99 (goal {GOAL_PLAN_MS})")
    print(f"   a report, {WAITING:,} calls waiting        {report_ms:8.2f} ms p99 (goal {GOAL_REPORT_MS})")


def _per_second(method: RoutingMethod) -> float:
    """Of single trajectories, each report coming as often as an instance's would: ten times a second."""
    fleet, now = _fleet(SLOTS // 2), 0.0
    strategy = RoutingStrategy(method=method, cost_model_path="cost.json", delta_throughput_threshold=0.0)
    began = time.process_time()
    for number in range(DECISIONS):
        request = _request(number, strategy)
        assert fleet.place(request, now).placements
        now += 1 / GOAL_PER_S
        name = number % INSTANCES
        fleet.report(_report(name, SLOTS // 2, received=number // INSTANCES + 1), now)
    return DECISIONS / (time.process_time() - began)


async def _while_many_wait() -> tuple[float, float]:
    """Half the slots are taken; those who wait ask for a version that nobody serves yet, so that each report looks for
    them in vain."""
    fleet = _fleet(WAITING // INSTANCES)
    queue = RouteQueue(fleet, clock=lambda: 0.0)
    calls = [
        asyncio.create_task(queue.route(_request(n, RoutingStrategy(), tag=VERSION + 1 + n % 3, wait_s=600)))
        for n in range(WAITING)
    ]
    await asyncio.sleep(0)
    names = itertools.cycle(range(INSTANCES))
    wanted = DispatchPlanRequest(run_id=RUN, trajectories_per_group=GROUP)

    def report() -> None:
        fleet.report(_report(next(names), WAITING // INSTANCES), 0.0)
        queue.changed(RUN)

    took = _p99(lambda: fleet.plan(wanted, 0.0), PLANS), _p99(report, REPORTS)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return took


def _p99(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.process_time()
        call()
        took.append(1000 * (time.process_time() - began))
    return statistics.quantiles(took, n=100)[98]


def _fleet(running: int) -> Fleet:
    fleet = Fleet(chance=lambda: 0.5)
    for number in range(INSTANCES):
        fleet.report(_report(number, running), 0.0)
    return fleet


def _report(number: int, running: int, received: int = 0) -> InstanceReport:
    return InstanceReport(
        instance=instance_id(number),
        run_id=RUN,
        state=InstanceState.SERVING,
        version=VERSION,
        running=running,
        received=received,
        max_num_seqs=SLOTS,
        kv_tokens=1000 * running,
        kv_capacity_tokens=10**6,
        cost=COST,
    )


def _request(number: int, strategy: RoutingStrategy, tag: int = 0, wait_s: float = 0.0) -> RouteRequest:
    return RouteRequest(
        run_id=RUN,
        group_id=GroupId(f"{number:06d}"),
        indices=(0,),
        version_tag=tag,
        wait_s=wait_s,
        strategy=strategy,
        tokens=(1000,),
        blocks=tuple(range(62)) if strategy.looks_at_tokens else (),
    )
