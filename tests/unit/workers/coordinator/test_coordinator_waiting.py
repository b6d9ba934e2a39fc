"""Route calls that wait."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from psrl.schemas.config import RequestOrder, RoutingStrategy
from psrl.schemas.ids import GroupId, InstanceId, RunId, Version, validation_group
from psrl.schemas.messages.rollout import InstanceReport, InstanceState, RouteRequest
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.waiting import RouteQueue

RUN = RunId("run")


def ask(
    group: int, tag: int = 0, tokens: int = 0, count: int = 1, wait_s: float = 60.0, **strategy: Any
) -> RouteRequest:
    return RouteRequest(
        run_id=RUN,
        group_id=GroupId(f"{group:06d}"),
        indices=tuple(range(count)),
        version_tag=tag,
        wait_s=wait_s,
        strategy=RoutingStrategy(**strategy),
        tokens=(tokens,) if tokens else (),
    )


class Counting(Fleet):
    asked = 0

    def place(self, request: RouteRequest, now: float) -> Any:
        self.asked += 1
        return super().place(request, now)


class Line:
    """Calls in the order in which they came, and as they are answered."""

    def __init__(self) -> None:
        self.fleet = Counting(chance=lambda: 0.0)
        self.queue = RouteQueue(self.fleet, clock=lambda: 0.0)
        self.served: list[str] = []
        self.calls: list[asyncio.Task[None]] = []

    async def come(self, *requests: RouteRequest) -> None:
        self.calls += [asyncio.create_task(self._call(request)) for request in requests]
        await asyncio.sleep(0)

    async def _call(self, request: RouteRequest) -> None:
        if (await self.queue.route(request)).placements:
            self.served.append(request.group_id)

    async def report(self, running: int, version: int = 9, received: int = 0, name: str = "rollout-0") -> None:
        """Of an instance with four slots and no queue."""
        self.fleet.report(
            InstanceReport(
                instance=InstanceId(name),
                run_id=RUN,
                state=InstanceState.SERVING,
                version=version,
                running=running,
                max_num_seqs=4,
                received=received,
            ),
            0.0,
        )
        self.queue.changed(RUN)
        for _ in range(3):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)


@pytest.fixture
async def line() -> Any:
    made = Line()
    yield made
    await made.close()


ORDERS = {
    RequestOrder.SMALL_ID: [3, 7, 12, 40],
    RequestOrder.LARGE_ID: [40, 12, 7, 3],
    RequestOrder.SHORT_LENGTH: [12, 3, 40, 7],
    RequestOrder.LONG_LENGTH: [7, 40, 3, 12],
}


@pytest.mark.parametrize("order", RequestOrder)
async def test_a_validation_round_is_answered_before_training_goes_on(line: Line, order: RequestOrder) -> None:
    """There is always more to train on."""
    asked = [ask(0, tokens=5), ask(1, tokens=9)]
    validation = asked[0].model_copy(update={"group_id": validation_group(Version(9), 0), "tokens": (7,)})
    await line.report(running=4)
    await line.come(
        *(
            one.model_copy(update={"strategy": RoutingStrategy(request_sort_indicator=order)})
            for one in (*asked, validation)
        )
    )
    await line.report(running=3)
    assert line.served == [validation.group_id]


async def test_a_call_over_which_the_fleet_stumbles_is_nobodys_but_its_own(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    await line.report(running=0)
    with monkeypatch.context() as broken:
        broken.setattr(line.fleet, "place", lambda request, now: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await line.queue.route(ask(1))
    await line.come(ask(2))
    assert list(line.queue.waiting()) == []
    assert line.served == ["000002"]
    assert line.fleet.asked == 1


@pytest.mark.parametrize("lengths", [{"tokens": (5,)}, {"tokens": (5, 6), "sampled": (1,)}])
def test_lengths_of_other_requests_are_refused(lengths: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="lengths for 2 indices"):
        RouteRequest.model_validate({**ask(1, count=2).model_dump(), **lengths})


@pytest.mark.parametrize("order", RequestOrder)
async def test_who_waits_is_served_in_the_order_of_the_run(line: Line, order: RequestOrder) -> None:
    await line.report(running=4)
    for group, tokens in ((12, 10), (3, 20), (40, 30), (7, 40)):
        await line.come(ask(group, tag=group % 3, tokens=tokens, request_sort_indicator=order))
    for served in range(4):
        await line.report(running=3, received=served)
    assert [int(group) for group in line.served] == ORDERS[order]


async def test_of_calls_of_one_rank_the_first_to_come_is_served_first(line: Line) -> None:
    await line.report(running=4)
    order = {"request_sort_indicator": RequestOrder.SHORT_LENGTH}
    await line.come(*(ask(group, tokens=10, **order) for group in (5, 2, 8)))
    for served in range(3):
        await line.report(running=3, received=served)
    assert [int(group) for group in line.served] == [5, 2, 8]


@pytest.mark.parametrize(("by_tag", "served"), [(True, [9, 4]), (False, [4, 9])])
async def test_with_several_levels_the_oldest_tag_is_served_first(line: Line, by_tag: bool, served: list[int]) -> None:
    await line.report(running=4)
    await line.come(
        ask(4, tag=3, enable_multi_priority_queue=by_tag), ask(9, tag=1, enable_multi_priority_queue=by_tag)
    )
    for received in range(2):
        await line.report(running=3, received=received)
    assert [int(group) for group in line.served] == served


async def test_a_call_that_no_instance_is_new_enough_for_holds_up_none_with_an_older_tag(line: Line) -> None:
    await line.report(running=4, version=3)
    await line.come(ask(1, tag=5), ask(2, tag=3), ask(3, tag=6))
    await line.report(running=2, version=3)
    assert [int(group) for group in line.served] == [2]


async def test_a_new_call_does_not_overtake_one_that_waits_for_the_same_room(line: Line) -> None:
    await line.report(running=4)
    await line.come(ask(1))
    await line.come(ask(2))
    await line.report(running=3)
    await line.come(ask(3))
    assert [int(group) for group in line.served] == [1]


async def test_looking_costs_a_question_for_each_version_however_many_wait(line: Line) -> None:
    await line.report(running=4)
    await line.come(*(ask(group, tag=group % 3) for group in range(300)))
    before = line.fleet.asked
    await line.report(running=4)
    assert line.fleet.asked - before <= 3


async def test_a_group_that_waits_for_its_own_instance_holds_up_nobody_else(line: Line) -> None:
    sticky = {"enable_group_sticky": True}
    await line.report(running=0)
    await line.come(ask(1, **sticky))
    await line.report(running=4, received=1)
    await line.come(ask(1, **sticky), ask(2, **sticky))
    await line.report(running=0, name="rollout-1")
    assert [int(group) for group in line.served] == [1, 2]


async def test_a_call_that_finds_nothing_in_time_says_what_it_waited_for_and_is_forgotten(line: Line) -> None:
    await line.report(running=4)
    for _ in range(20):
        result = await line.queue.route(ask(1, wait_s=0))
        assert (result.placements, result.reason) == ((), "1 instance: rollout-0 full 4/4")
    assert list(line.queue.waiting()) == []
    await line.come(ask(2))
    assert list(line.queue.waiting()) == [(RUN, 0, 1)]
