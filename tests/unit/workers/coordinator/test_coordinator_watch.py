"""What is recorded of the fleet, and told to Prometheus."""

import asyncio
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.errors import UserError
from psrl.schemas.ids import GroupId, InstanceId, RunId
from psrl.schemas.messages.rollout import InstanceReport, InstanceState, RouteRequest
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.metrics import FleetMetrics, serve_metrics
from psrl.workers.coordinator.now import Now, look
from psrl.workers.coordinator.recorder import CONFIG, ROUTING, Recorder
from psrl.workers.coordinator.waiting import RouteQueue

RUN = RunId("run")


def report(fleet: Fleet, name: str = "rollout-0", now: float = 0.0, **more: Any) -> None:
    values = {"run_id": RUN, "version": 3, "max_num_seqs": 4, "record_every_s": 1.0, "running": 4, **more}
    fleet.report(InstanceReport(instance=InstanceId(name), state=InstanceState.SERVING, **values), now)


def ask(tag: int, wait_s: float = 60.0) -> RouteRequest:
    return RouteRequest(run_id=RUN, group_id=GroupId("000001"), indices=(0,), version_tag=tag, wait_s=wait_s)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seen(fleet: Fleet, clock: float = 0.0, queue: RouteQueue | None = None) -> Now:
    return look(fleet, queue or RouteQueue(fleet), clock, 1e9 + clock)


def test_each_instance_has_a_line_per_interval_with_the_fields_that_tools_read(tmp_path: Path) -> None:
    fleet, recorder = Fleet(), Recorder(tmp_path)
    report(fleet, waiting=2, kv_cache_usage=0.5, throughput=70.0, itl_s=0.01)
    report(fleet, "pool/a.1", record_every_s=2.0)
    for tenth in range(25):
        recorder.record(seen(fleet, tenth / 10))
    first, *others = lines(tmp_path / RUN / "stats_rollout-0_dp0.jsonl")
    assert first == {
        "ts": 1e9,
        "model_version": 3,
        "num_running_reqs": 4,
        "num_waiting_reqs": 2,
        "kv_cache_usage": 0.5,
        "generation_throughput": 70.0,
        "avg_ttft": None,
        "avg_itl": 0.01,
    }
    assert [line["ts"] - 1e9 for line in others] == [1.0, 2.0]
    assert (tmp_path / RUN / "stats_pool_a_1_dp0.jsonl").exists()


def test_a_run_that_is_not_recorded_leaves_no_file(tmp_path: Path) -> None:
    fleet = Fleet()
    report(fleet, record_every_s=0.0)
    report(fleet, "rollout-1", run_id="")
    Recorder(tmp_path / "status").record(seen(fleet))
    assert list(tmp_path.iterdir()) == []


async def test_calls_that_wait_are_recorded_by_their_tag_and_the_method_with_the_first_line(tmp_path: Path) -> None:
    fleet = Fleet()
    queue = RouteQueue(fleet, clock=lambda: 0.0)
    report(fleet, running=3)
    calls = [asyncio.create_task(queue.route(ask(tag))) for tag in (3, 4, 4)]
    await asyncio.sleep(0)
    Recorder(tmp_path).record(seen(fleet, queue=queue))
    (line,) = lines(tmp_path / RUN / ROUTING)
    assert line == {
        "ts": 1e9,
        "queue_len": 2,
        "pending_request_num": 2,
        "running_request_num": 4,
        "partition_lengths": {"4": 2},
    }
    (config,) = lines(tmp_path / RUN / CONFIG)
    assert config == {"routing_strategy": "request_num_balance", "interval_in_s": 1.0, "started_at": 1e9}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_how_a_run_routes_is_recorded_once_it_has_routed(tmp_path: Path) -> None:
    """Instances report long before."""
    fleet, recorder = Fleet(), Recorder(tmp_path)
    report(fleet, running=0)
    recorder.record(seen(fleet, 0.0))
    assert not (tmp_path / RUN / CONFIG).exists()
    assert fleet.place(ask(3), 1.0).placements
    recorder.record(seen(fleet, 1.0))
    (config,) = lines(tmp_path / RUN / CONFIG)
    assert config["routing_strategy"] == "request_num_balance"


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "status").write_text("a file")
    fleet, recorder = Fleet(), Recorder(tmp_path / "status")
    report(fleet)
    for second in range(3):
        recorder.record(seen(fleet, float(second)))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the status of instances is not recorded, trying on"
    ]


def test_prometheus_reads_the_newest_look_at_the_fleet() -> None:
    fleet, metrics = Fleet(), FleetMetrics()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    stop = serve_metrics(address, metrics)
    try:
        report(fleet, running=2, tokens_total=17)
        assert fleet.place(ask(3), 0.0).placements
        metrics.now = seen(fleet)
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            page = answer.read().decode()
    finally:
        stop()
    assert 'psrl_instance_running{instance="rollout-0",run="run"} 2.0' in page
    assert 'psrl_instance_load{instance="rollout-0",run="run"} 3.0' in page
    assert 'psrl_instance_tokens_total{instance="rollout-0",run="run"} 17.0' in page
    assert 'psrl_placements_total{run="run"} 1.0' in page


def test_an_address_for_metrics_that_is_no_use_is_refused() -> None:
    with pytest.raises(UserError, match=r"PSRL_COORDINATOR_METRICS=here.*allowed: HOST:PORT"):
        serve_metrics("here", FleetMetrics())
