"""Routing policies: which of the instances that may serve a trajectory gets it.

A policy only chooses; that an instance has room and is new enough was checked before (`fleet.py`). A further policy is
a class with `choose`, registered for its `RoutingMethod`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...schemas.config.psrl import RoutingMethod
from ...schemas.ids import InstanceId


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that serves the run at a version new enough and has room."""

    instance: InstanceId
    version: int
    load: int
    capacity: int


class Policy(Protocol):
    """One per run: a policy may remember what it chose."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """One of `candidates`, which is not empty and sorted by instance."""
        ...


_REGISTRY: dict[RoutingMethod, Callable[[], Policy]] = {}


def register(method: RoutingMethod) -> Callable[[type[Policy]], type[Policy]]:
    """Class decorator: this policy serves `method`."""

    def add(policy: type[Policy]) -> type[Policy]:
        _REGISTRY[method] = policy
        return policy

    return add


def make_policy(method: RoutingMethod) -> Policy:
    return _REGISTRY[method]()


@register(RoutingMethod.REQUEST_NUM_BALANCE)
class RequestNumBalance:
    """The fewest active requests; among equals the first by name."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        return min(candidates, key=lambda candidate: candidate.load)


@register(RoutingMethod.ROUND_ROBIN)
class RoundRobin:
    """The next by name after the one chosen before, so that an instance that leaves or joins breaks nothing."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        later = [candidate for candidate in candidates if candidate.instance > self._last]
        chosen = (later or candidates)[0]
        self._last = chosen.instance
        return chosen


@register(RoutingMethod.RANDOM)
class Random:
    """Any, with equal probability. Nothing durable depends on the choice, so it needs no seed."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        return random.choice(candidates)
