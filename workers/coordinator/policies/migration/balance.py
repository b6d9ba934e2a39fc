"""From the instance that is busiest in relation to a starved one, as many requests as make the two equal.

Starved is who serves, has free slots, has nothing waiting in its engine, and could not get anything from the queue. A
donor serves the same version or an older one: what moves is not to continue under older weights. It gives when its
indicator is more than `threshold` times the starved one's (and more than nothing, where that has none), and as long as
its stop indicator is at `stop_threshold` or above. Requests without a slot go first, as they have nothing to lose, then
those with the fewest tokens: moving costs the prefill of all of them. None moves once the receiver would be as busy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from .....schemas.config.sync_and_mig import LoadIndicator
from ..load import INDICATORS, InstanceLoad, RequestLoad
from .contract import Migration, MigrationSnapshot


@dataclass(frozen=True, slots=True)
class Balance:
    indicator: LoadIndicator
    threshold: float
    stop_indicator: LoadIndicator = LoadIndicator.REQUEST_NUM
    stop_threshold: float = 0.0

    def __call__(self, snapshot: MigrationSnapshot) -> Migration | None:
        pairs = [
            (self._ratio(donor, starved), donor, starved)
            for starved in snapshot.instances
            if _starved(starved, snapshot.queued)
            for donor in snapshot.instances
            if donor.serving and donor.version <= starved.version and donor.instance != starved.instance
        ]
        ratio, donor, receiver = max(
            pairs, key=lambda pair: (pair[0], self._value(pair[1]), pair[2].free), default=(0.0, None, None)
        )
        if donor is None or receiver is None or ratio <= self.threshold:
            return None
        chosen = list(self._moves(donor, receiver))
        if not chosen:
            return None
        values = f"{self._value(donor):g} against {self._value(receiver):g}"
        return Migration(donor.instance, receiver.instance, chosen, f"{self.indicator} {values}")

    def _moves(self, donor: InstanceLoad, receiver: InstanceLoad) -> Iterator[str]:
        """One after the other, while each makes the busier of the two less busy."""
        high, low, stop = self._value(donor), self._value(receiver), INDICATORS[self.stop_indicator](donor)
        slots = receiver.free
        for request, runs in _cheapest_first(donor):
            lost = _share(self.indicator, donor, donor, request) if runs else 0.0
            gained = _share(self.indicator, donor, receiver, request)
            if stop < self.stop_threshold or not slots or low + gained > high - lost:
                return
            yield request.request_id
            high, low, slots = high - lost, low + gained, slots - 1
            stop -= _share(self.stop_indicator, donor, donor, request) if runs else 0.0

    def _ratio(self, donor: InstanceLoad, starved: InstanceLoad) -> float:
        high, low = self._value(donor), self._value(starved)
        if low:
            return high / low
        return inf if high else 1.0

    def _value(self, load: InstanceLoad) -> float:
        return INDICATORS[self.indicator](load)


def _starved(load: InstanceLoad, queued: Sequence[int]) -> bool:
    suited = any(tag <= load.version for tag in queued)
    return load.serving and load.free > 0 and not load.waiting and not suited


def _cheapest_first(donor: InstanceLoad) -> list[tuple[RequestLoad, bool]]:
    """With whether it has a slot."""
    known = [(request, place < donor.slots) for place, request in enumerate(donor.requests)]
    return sorted(known, key=lambda one: (one[1], one[0].tokens, one[0].request_id))


def _share(indicator: LoadIndicator, donor: InstanceLoad, of: InstanceLoad, request: RequestLoad) -> float:
    """What the request adds to the indicator of an instance."""
    if indicator is LoadIndicator.REQUEST_NUM:
        return 1.0
    if indicator is LoadIndicator.THROUGHPUT:
        return donor.throughput / donor.running if donor.running else 0.0
    return request.tokens / of.kv_capacity if of.kv_capacity else inf
