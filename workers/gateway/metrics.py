"""What `/metrics` tells Prometheus. Each gateway has a registry of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .errors import as_api_error
from .slots import Slots

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self, slots: Slots) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter("psrl_gateway_answers", "Answers by HTTP status.", ["status"], registry=self._registry)
        self._turns = Counter("psrl_gateway_turns", "Turns by outcome.", ["outcome"], registry=self._registry)
        self._whole = self._histogram("psrl_gateway_turn_seconds", "A turn, from request to answer.")
        self._played = self._histogram("psrl_gateway_played_seconds", "A turn, while its session played it.")
        Gauge("psrl_gateway_turns_in_flight", "Turns now.", registry=self._registry).set_function(lambda: slots.taken)

    def answered(self, status: int) -> None:
        self._answers.labels(str(status)).inc()

    @contextmanager
    def turn(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            told = as_api_error(error)
            self._turns.labels(told.code if told else "defect").inc()
            raise
        self._turns.labels("played").inc()
        self._whole.observe(time.monotonic() - began)

    @contextmanager
    def playing(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._played.observe(time.monotonic() - began)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, meaning, buckets=SECONDS, registry=self._registry)
