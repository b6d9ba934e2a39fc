"""What the coordinator tells Prometheus, at `PSRL_COORDINATOR_METRICS` if that is set: its newest look at the fleet."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...schemas.environment import COORDINATOR_METRICS
from ...schemas.errors import UserError
from ...schemas.messages.fleet import FleetInstance
from .now import Now

GAUGES: dict[str, tuple[str, Callable[[FleetInstance], float]]] = {
    "version": ("Version that the instance serves.", lambda one: one.report.version),
    "running": ("Requests that have a slot.", lambda one: one.report.running),
    "waiting": ("Requests that have none yet.", lambda one: one.report.waiting),
    "load": ("Requests, with those that are on their way to it.", lambda one: one.load),
    "slots": ("Requests that it may run at once.", lambda one: one.report.max_num_seqs),
    "kv_cache_usage": ("Share of its KV cache in use.", lambda one: one.report.kv_cache_usage),
    "throughput": ("Tokens per second.", lambda one: one.report.throughput),
    "report_age_seconds": ("Since its newest report.", lambda one: one.age_s),
}


class FleetMetrics(Collector):
    def __init__(self) -> None:
        self.now = Now(clock=0.0, wall=0.0)

    def collect(self) -> Iterable[Metric]:
        now = self.now
        for name, (meaning, value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"psrl_instance_{name}", meaning, labels=["run", "instance"])
            for one in now.instances:
                gauge.add_metric([one.report.run_id, one.report.instance], value(one))
            yield gauge
        tokens = CounterMetricFamily("psrl_instance_tokens", "Tokens generated.", labels=["run", "instance"])
        for one in now.instances:
            tokens.add_metric([one.report.run_id, one.report.instance], one.report.tokens_total)
        yield tokens
        waiting = GaugeMetricFamily("psrl_route_calls_waiting", "Calls that wait for room.", labels=["run", "tag"])
        for run_id, tag, count in now.waiting:
            waiting.add_metric([run_id, str(tag)], count)
        yield waiting
        placed = CounterMetricFamily("psrl_placements", "Trajectories placed on instances.", labels=["run"])
        for run_id, total in now.placed.items():
            placed.add_metric([run_id], total)
        yield placed


def serve_metrics(address: str, metrics: FleetMetrics) -> Callable[[], None]:
    """In a thread of its own, until the call that is returned. Raises `UserError`."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(int(port), host, registry)
    except (OSError, ValueError) as error:
        raise UserError(f"{COORDINATOR_METRICS}={address}: {error}; allowed: HOST:PORT, a free port") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
