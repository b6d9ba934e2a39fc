"""The host's states and its gate, with a scripted engine and no store."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.cost_model import CostModel
from psrl.schemas.errors import (
    ConfigError,
    EngineUnavailable,
    InstanceBusy,
    InvariantViolated,
    Unreachable,
    WeightsRefused,
)
from psrl.schemas.ids import RunId, Version
from psrl.schemas.messages.coordination import HostCommand, HostCommandKind
from psrl.schemas.messages.rollout import EngineSpec, InstanceReport, InstanceState
from psrl.workers.rollout import host as host_module
from psrl.workers.rollout import tenancy
from psrl.workers.rollout.engine import load_engine
from psrl.workers.rollout.host import Host
from psrl.workers.rollout.reporter import keep_attached
from tests.support.rollout import RUN, SPEC, ScriptedWeights, make_host, with_engine
from tests.support.scripted_engine import Script, ScriptedEngine

OTHER = RunId("other")
HASTY = with_engine(SPEC, stall_timeout_s=0.2)
OTHER_SPEC = SPEC.model_copy(update={"run_id": OTHER})


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def made(script: Script) -> tuple[Host, ScriptedWeights, list[ScriptedEngine]]:
    return make_host(script)


@pytest.fixture
def host(made: tuple[Host, Any, Any]) -> Host:
    return made[0]


@pytest.fixture
def engines(made: tuple[Host, Any, list[ScriptedEngine]]) -> list[ScriptedEngine]:
    return made[2]


async def serve(host: Host, version: int = 1, spec: EngineSpec = SPEC) -> None:
    await host.start(spec)
    await host.pull(spec.run_id, Version(version))
    await host.resume(spec.run_id)


def seen(host: Host) -> tuple[InstanceState, int]:
    report = host.report()
    return report.state, report.version


async def test_the_gate_opens_only_after_start_pull_and_resume(host: Host) -> None:
    """Field report 13: an engine that was started reports version -1 and serves nothing before a pull."""
    assert seen(host) == (InstanceState.STOPPED, -1)
    await host.start(SPEC)
    assert seen(host) == (InstanceState.STARTED, -1)
    with pytest.raises(EngineUnavailable, match="pull_weights comes first"):
        await host.resume(RUN)
    await host.pull(RUN, Version(4))
    assert seen(host) == (InstanceState.LOADED, 4)
    assert await host.enter(RUN, 0, patience_s=0.01) is None
    await host.resume(RUN)
    assert seen(host) == (InstanceState.SERVING, 4)
    assert await host.enter(RUN, 4, patience_s=0.01) == 4


async def test_a_version_below_the_tag_is_never_used(host: Host) -> None:
    await serve(host, 4)
    with pytest.raises(EngineUnavailable, match="serves version 4; version 5 is needed"):
        await host.enter(RUN, 5, patience_s=0.01)


async def test_who_waits_at_the_gate_gets_the_version_that_opens_it(host: Host) -> None:
    await serve(host, 1)
    await host.pause(RUN, interrupt=True)
    waiting = asyncio.create_task(host.enter(RUN, 0, patience_s=10))
    await host.pull(RUN, Version(2))
    await host.resume(RUN)
    assert await waiting == 2


async def test_weights_are_refused_while_requests_are_admitted(host: Host) -> None:
    await serve(host, 1)
    with pytest.raises(InvariantViolated, match="pause comes first"):
        await host.pull(RUN, Version(2))
    assert seen(host) == (InstanceState.SERVING, 1)


async def test_commands_repeated_change_nothing(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1)
    await host.resume(RUN)
    await host.pause(RUN, interrupt=True)
    await host.pause(RUN, interrupt=True)
    first = await host.pull(RUN, Version(2))
    assert await host.pull(RUN, Version(2)) == first
    await host.resume(RUN)
    await host.resume(RUN)
    assert (seen(host), engines[0].loaded, len(engines)) == ((InstanceState.SERVING, 2), [1, 2], 1)


async def test_a_start_repeated_keeps_the_engine_but_shuts_the_gate(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1)
    await host.start(SPEC)
    assert (seen(host), len(engines)) == ((InstanceState.LOADED, 1), 1)
    assert await host.enter(RUN, 0, patience_s=0.01) is None


async def test_another_run_is_refused_until_the_instance_is_released(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host)
    with pytest.raises(InstanceBusy, match="rollout-0 serves run run-1"):
        await host.start(OTHER_SPEC)
    with pytest.raises(EngineUnavailable, match="serves run run-1, not other"):
        await host.enter(OTHER, 0, patience_s=1)
    await host.release(OTHER)
    assert seen(host) == (InstanceState.SERVING, 1)
    await host.release(RUN)
    await host.release(RUN)
    assert (seen(host), engines[0].alive()) == ((InstanceState.STOPPED, -1), False)
    await serve(host, 3, OTHER_SPEC)
    assert host.report().run_id == OTHER


async def test_a_lease_that_nobody_renews_runs_out(
    host: Host, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(host)
    monkeypatch.setattr(tenancy, "LEASE_S", 0.0)
    await serve(host, 2, OTHER_SPEC)
    assert (host.report().run_id, len(engines)) == (OTHER, 2)


async def test_damaged_bytes_leave_the_engine_untouched(
    host: Host, made: tuple[Host, ScriptedWeights, list[ScriptedEngine]]
) -> None:
    """Field report 19: generation can be resumed after an update that failed as after one that succeeded."""
    await serve(host, 1)
    await host.pause(RUN, interrupt=True)
    made[1].damaged.add(2)
    with pytest.raises(WeightsRefused, match="damaged"):
        await host.pull(RUN, Version(2))
    assert (seen(host), made[2][0].loaded) == ((InstanceState.LOADED, 1), [1])
    await host.resume(RUN)
    assert seen(host) == (InstanceState.SERVING, 1)


async def test_a_pull_gives_its_lease_back_whether_or_not_the_version_could_be_loaded(
    made: tuple[Host, ScriptedWeights, list[ScriptedEngine]], script: Script
) -> None:
    host, weights, _ = made
    await serve(host, 1)
    assert (weights.fetched, weights.ended) == ([1], [1])
    await host.pause(RUN, interrupt=True)
    script.failing_loads.append(2)
    with pytest.raises(EngineUnavailable, match="failed midway"):
        await host.pull(RUN, Version(2))
    assert (weights.fetched, weights.ended) == ([1, 2], [1, 2])


async def test_a_failed_load_is_repaired_by_a_complete_good_one(
    host: Host, script: Script, engines: list[ScriptedEngine]
) -> None:
    """Field report 15: a failed update is an error with its reason, within a limit, and the next update works."""
    await serve(host, 1)
    await host.pause(RUN, interrupt=True)
    script.failing_loads.append(2)
    with pytest.raises(EngineUnavailable, match="failed midway"):
        await host.pull(RUN, Version(2))
    assert seen(host) == (InstanceState.QUARANTINED, -1)
    with pytest.raises(EngineUnavailable, match="no weights to serve"):
        await host.resume(RUN)
    await host.pull(RUN, Version(2))
    await host.resume(RUN)
    assert (seen(host), len(engines)) == ((InstanceState.SERVING, 2), 1)


async def test_weights_that_compute_something_else_are_refused(host: Host, script: Script) -> None:
    script.wrong_probes.append(2)
    await serve(host, 1)
    await host.pause(RUN, interrupt=True)
    with pytest.raises(WeightsRefused, match=r"log-probs differ from the trainer's by 0\.5; allowed is .*=0\.001"):
        await host.pull(RUN, Version(2))
    assert seen(host) == (InstanceState.QUARANTINED, -1)
    result = await host.pull(RUN, Version(2))
    assert result.probe_max_abs_diff == 0


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_weights_that_compute_no_number_are_refused(
    host: Host, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A comparison with NaN is false, and `max` passes over one that is not the first."""
    await host.start(SPEC)
    right = engines[0].probe

    async def probe(token_ids: Sequence[int]) -> list[float]:
        values = await right(token_ids)
        return [math.nan if place == at else value for place, value in enumerate(values)]

    monkeypatch.setattr(engines[0], "probe", probe)
    with pytest.raises(WeightsRefused, match="by nan; allowed is"):
        await host.pull(RUN, Version(1))
    assert seen(host) == (InstanceState.QUARANTINED, -1)


async def test_a_death_during_a_pull_fails_it_and_the_next_start_makes_a_new_engine(
    host: Host, script: Script, engines: list[ScriptedEngine]
) -> None:
    script.load_s = 0.2
    await host.start(SPEC)
    pull = asyncio.create_task(host.pull(RUN, Version(1)))
    await asyncio.sleep(0.05)
    assert seen(host)[0] is InstanceState.PULLING
    await engines[0].die()
    host.notice_death()
    with pytest.raises(EngineUnavailable, match="the engine died"):
        await pull
    assert seen(host) == (InstanceState.LOST, -1)
    await serve(host, 1)
    assert (seen(host), len(engines)) == ((InstanceState.SERVING, 1), 2)


async def test_tokens_count_from_the_latest_start(host: Host) -> None:
    await serve(host, 1)
    host.counts.sampled(5)
    host.counts.stored(5)
    assert host.counts.tokens == 5
    await host.start(SPEC)
    assert (host.counts.tokens, host.report().tokens_total) == (0, 5)


async def test_an_engine_that_cannot_be_trusted_is_made_anew(
    host: Host, script: Script, engines: list[ScriptedEngine]
) -> None:
    script.wrong_probes.append(1)
    await host.start(SPEC)
    with pytest.raises(WeightsRefused):
        await host.pull(RUN, Version(1))
    await serve(host, 1)
    assert (seen(host), [engine.alive() for engine in engines]) == ((InstanceState.SERVING, 1), [False, True])


async def test_a_death_is_noticed_and_repaired_by_a_start(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1)
    await engines[0].die()
    with pytest.raises(EngineUnavailable, match="the engine died"):
        host.renew_lease(RUN)
    host.notice_death()
    assert seen(host) == (InstanceState.LOST, -1)
    await serve(host, 1)
    assert seen(host) == (InstanceState.SERVING, 1)


async def test_a_stuck_engine_is_ended_reported_and_replaced(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1, HASTY)
    await engines[0].stall()
    host.changed.clear()
    await noticing(host)
    assert seen(host) == (InstanceState.LOST, -1)
    assert host.changed.is_set(), "the coordinator is told at once"
    assert not engines[0].alive()
    with pytest.raises(EngineUnavailable, match=r"the engine is stuck: .*rollout\.stall_timeout_s=0\.2"):
        host.renew_lease(RUN)
    await serve(host, 1, HASTY)
    assert (seen(host), len(engines)) == ((InstanceState.SERVING, 1), 2)


async def test_an_engine_that_cannot_be_ended_is_given_up_all_the_same(
    host: Host, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in a driver survives SIGKILL for a while."""
    await serve(host, 1, HASTY)
    await engines[0].stall()
    monkeypatch.setattr(ScriptedEngine, "kill", lambda engine: None)
    await noticing(host)
    assert engines[0].alive()
    with pytest.raises(EngineUnavailable, match="the engine is stuck"):
        host.renew_lease(RUN)


async def test_a_stall_while_the_engine_drains_ends_the_pause(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1, HASTY)
    with host.gate.slot("inside", 3):
        await engines[0].stall()
        draining = asyncio.create_task(host.pause(RUN, interrupt=False))
        await asyncio.sleep(0)
        await noticing(host)
    with pytest.raises(EngineUnavailable, match="the engine is stuck"):
        await draining


async def test_an_engine_that_cannot_be_paused_is_ended(
    host: Host, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(host, 1)
    await engines[0].stall()
    monkeypatch.setattr(host_module, "INTERRUPT_TIMEOUT_S", 0.05)
    with pytest.raises(EngineUnavailable, match="could not be paused"):
        await host.pause(RUN, interrupt=True)
    assert (seen(host)[0], engines[0].alive()) == (InstanceState.LOST, False)


async def noticing(host: Host) -> None:
    """As the reporter does, until the host has given its engine up."""
    async with asyncio.timeout(60):
        while seen(host)[0] is not InstanceState.LOST:
            host.notice_stall()
            await asyncio.sleep(0.01)


async def test_a_start_that_fails_leaves_the_instance_free(host: Host, script: Script) -> None:
    script.failing_starts = 1
    with pytest.raises(EngineUnavailable, match="did not start: RuntimeError"):
        await host.start(SPEC)
    assert seen(host) == (InstanceState.STOPPED, -1)
    await serve(host, 1, OTHER_SPEC)


async def test_a_cancelled_caller_does_not_stop_an_operation_midway(host: Host, script: Script) -> None:
    script.load_s = 0.2
    await host.start(SPEC)
    pull = asyncio.create_task(host.pull(RUN, Version(1)))
    await asyncio.sleep(0.05)
    assert seen(host)[0] is InstanceState.PULLING
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    await host.resume(RUN)
    assert seen(host) == (InstanceState.SERVING, 1)


async def test_a_request_that_slipped_in_behind_a_pause_is_aborted(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1)
    engine, aborted = engines[0], asyncio.Event()

    async def late() -> None:
        with host.gate.slot("late", 3):
            async with engine._changed:
                await engine._changed.wait_for(lambda: "late" in engine.aborted)
            aborted.set()

    inside = asyncio.create_task(late())
    await asyncio.sleep(0)
    await host.pause(RUN, interrupt=True)
    assert aborted.is_set()
    await inside


class FlakyCoordinator:
    """Away at first; then takes reports, and breaks the stream after so many of them."""

    def __init__(self, breaks_after: int = 1000) -> None:
        self.reports: asyncio.Queue[InstanceReport] = asyncio.Queue()
        self.attached = 0
        self._breaks_after = breaks_after

    async def attach(self, reports: AsyncIterator[InstanceReport]) -> AsyncIterator[HostCommand]:
        self.attached += 1
        if self.attached == 1:
            raise Unreachable("away")
        taken = 0
        async for report in reports:
            await self.reports.put(report)
            taken += 1
            if taken == self._breaks_after:
                raise Unreachable("gone")
        return
        yield


async def test_reports_go_out_on_every_change_and_survive_a_coordinator_that_is_away(host: Host) -> None:
    coordinator, ending = FlakyCoordinator(breaks_after=2), asyncio.Event()
    task = asyncio.create_task(keep_attached(host, coordinator, ending))
    states = set()
    await serve(host, 1)
    async with asyncio.timeout(60):
        while InstanceState.SERVING not in states:
            report = await coordinator.reports.get()
            states.add(report.state)
        assert (report.version, report.max_num_seqs, report.running, report.waiting) == (1, 8, 0, 0)
        attached = coordinator.attached
        while coordinator.attached < attached + 2:
            await coordinator.reports.get()
        task.cancel()


class OrderingCoordinator(FlakyCoordinator):
    """Interrupts a request with each report that it takes."""

    async def attach(self, reports: AsyncIterator[InstanceReport]) -> AsyncIterator[HostCommand]:
        async for report in reports:
            await self.reports.put(report)
            yield HostCommand(run_id=RUN, kind=HostCommandKind.INTERRUPT, requests=("moved",))


async def test_an_engine_that_fails_at_a_command_leaves_the_host_attached(
    host: Host, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request_ids: Sequence[str]) -> None:
        raise RuntimeError("broken pipe")

    await serve(host, 1)
    monkeypatch.setattr(engines[0], "abort", broken)
    coordinator, ending = OrderingCoordinator(), asyncio.Event()
    with host.gate.slot("moved", 30):
        task = asyncio.create_task(keep_attached(host, coordinator, ending))
        async with asyncio.timeout(60):
            for _ in range(3):
                await coordinator.reports.get()
    assert not task.done()
    task.cancel()
    assert "broken pipe" in caplog.text


async def test_the_last_report_says_that_the_host_has_stopped(host: Host) -> None:
    coordinator, ending = FlakyCoordinator(), asyncio.Event()
    task = asyncio.create_task(keep_attached(host, coordinator, ending))
    await serve(host, 1)
    async with asyncio.timeout(60):
        await coordinator.reports.get()
        await host.shutdown()
        ending.set()
        await task
    told = [coordinator.reports.get_nowait() for _ in range(coordinator.reports.qsize())]
    assert told[-1].state is InstanceState.STOPPED


async def test_requests_are_interrupted_by_name_and_others_go_on(host: Host, engines: list[ScriptedEngine]) -> None:
    await serve(host, 1)
    with host.gate.slot("moved", 30), host.gate.slot("stays", 10):
        await host.interrupt_requests(RUN, ["moved", "long gone"])
        assert engines[0].aborted == {"moved"}
        with pytest.raises(EngineUnavailable, match="serves run run-1, not other"):
            await host.interrupt_requests(OTHER, ["stays"])
    await host.interrupt_requests(OTHER, ["moved"])
    assert engines[0].aborted == {"moved"}


def test_an_engine_path_that_does_not_import_is_named() -> None:
    with pytest.raises(Exception, match=r"--engine 'tests\.support\.nothing:Engine' does not import"):
        load_engine("tests.support.nothing:Engine")


async def test_a_report_has_the_lengths_of_each_request_in_the_engine(host: Host) -> None:
    await serve(host, 1)
    with host.gate.slot("first", 30), host.gate.slot("second", 10, sampled=5):
        host.gate.progress("first", 4)
        report = host.report()
    assert (report.requests, report.prompt_tokens, report.generated_tokens) == (("first", "second"), (30, 10), (4, 5))
    assert report.kv_tokens == 49


async def test_a_host_tells_what_its_engine_costs_and_does_not_start_one_that_its_file_does_not_know(
    host: Host, tmp_path: Path
) -> None:
    """An instance that no policy could weigh would never get a request."""
    path = tmp_path / "cost.json"
    spec = SPEC.model_copy(update={"cost_model_path": str(path)})
    path.write_text(json.dumps({"TP8_PP1": {}}))
    with pytest.raises(ConfigError, match="no entry 'TP1_PP1' for this engine; it has: TP8_PP1"):
        await host.start(spec)
    assert seen(host) == (InstanceState.STOPPED, -1)
    cost = {"other_threshold": 1, "other_latency_b": 0, "other_latency_k": 0, "attn_latency_b": 0, "attn_latency_k": 0}
    path.write_text(json.dumps({"TP1_PP1": cost}))
    await serve(host, 1, spec)
    assert host.report().cost == CostModel.model_validate(cost)


@pytest.mark.parametrize(
    ("capacity", "slots", "waiting"),
    [(100, 4, 0), (59, 4, 1), (58, 4, 2), (45, 4, 2), (45, 2, 0), (44, 4, 3), (3, 4, 4)],
)
def test_requests_wait_for_kv_cache_by_their_lengths_a_shared_prompt_counting_once(
    host: Host, capacity: int, slots: int, waiting: int
) -> None:
    """Of one group 30 tokens of prompt with 10 and 5 after it, of others 14 and 20."""
    gate = host.gate
    with gate.slot("a-0", 30, 10, "a"), gate.slot("a-1", 30, 5, "a"), gate.slot("b", 14), gate.slot("c", 20):
        assert gate.beyond(slots, capacity) == waiting
