"""What one segment waits for beside its engine: from the route call to the result in the workflow's history, minus the
time the engine worked. At low load (one trajectory at a time) and with 16 at the same time."""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import select
from temporalio.api.enums.v1 import EventType

from psrl.schemas.ids import GroupId, group_workflow
from psrl.schemas.tables import Segment
from tests.benchmarks.assembly import RUN, Assembly, assembled
from tests.benchmarks.control_cost import scripted_shape

TOKENS = 10
SHORT_S, TURN_S = 0.01, 0.1
"""Per token: a turn of a tenth of a second, where the added time shows, and of a second, as people have them."""
LOW, LOADED, TURNS = 40, 192, 60


@dataclass(frozen=True)
class Added:
    """Milliseconds per segment."""

    route_to_result: float
    """From the start of the workflow task that routes to the completion of the generate activity."""
    engine: float

    @property
    def overhead(self) -> float:
        return self.route_to_result - self.engine


async def measure() -> None:
    await _measure(SHORT_S, (("1 at a time", LOW, 1), ("16 at a time", LOADED, 16)))
    await _measure(TURN_S, (("1 at a time", TURNS, 1), ("16 at a time", LOADED, 16)))


async def _measure(token_s: float, loads: Sequence[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        shape = scripted_shape(
            Path(folder), trajectories=1, new_tokens=TOKENS, script={"token_s": token_s}, instances=1, seqs=64
        )
        async with assembled(shape) as assembly:
            await assembly.play(await assembly.draw(16), wave=1, in_flight=4)
            print(f"   conditions: scripted engine, {TOKENS} tokens at {1000 * token_s:g} ms, groups of 1")
            for text, count, at_once in loads:
                groups = await assembly.draw(count)
                await assembly.play(groups, wave=1, in_flight=at_once)
                _print(text, [await _added(assembly, group) for group in groups])


async def _added(assembly: Assembly, group: GroupId) -> Added:
    """From the group's own history and segment row."""
    history = await assembly.client.get_workflow_handle(group_workflow(RUN, group)).fetch_history()
    times: dict[int, datetime] = {}
    for event in history.events:
        times.setdefault(event.event_type, event.event_time.ToDatetime())
    routed = times[EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED]
    done = times[EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    query = select(Segment.started_at, Segment.finished_at).where(Segment.run_id == RUN, Segment.group_id == group)
    async with assembly.store.connect() as connection:
        started, finished = (await connection.execute(query)).one()
    return Added(1000 * (done - routed).total_seconds(), 1000 * (finished - started).total_seconds())


def _print(text: str, found: Sequence[Added]) -> None:
    overheads = sorted(segment.overhead for segment in found)
    median, p99 = statistics.median(overheads), overheads[min(len(overheads) - 1, int(0.99 * len(overheads)))]
    engine = statistics.median(segment.engine for segment in found)
    print(
        f"   {text}: median {median:.1f} ms, p99 {p99:.1f} ms added to an engine time of {engine:.0f} ms: "
        f"ratio of medians {median / engine:.3f} ({len(overheads)} segments)",
        flush=True,
    )
