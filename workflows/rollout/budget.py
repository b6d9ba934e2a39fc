"""How often one engine may fail, and how long it has been of no use. Pure, with the caller's clock; used by `Life`.

Promises:
- an engine is started anew `allowed` times, at growing intervals; the next failure quarantines it;
- a quarantine lasts through every attempt to bring the engine up until one has succeeded;
- an engine that served for `heals_s` at a stretch has its whole budget again;
- time in vain adds up over quarantines that only moments of service lay between: it is forgotten when the engine has
  given tokens, or served for `heals_s`, not because it came up.
"""

from ...schemas.messages.run import EngineRecord
from ..calls import settings


class Budget:
    def __init__(self, allowed: int, heals_s: float, record: EngineRecord) -> None:
        self._allowed, self._heals_s = allowed, heals_s
        self._failures = record.failures
        self._quarantined_at = record.quarantined_at
        self._in_vain_s = record.in_vain_s
        self._serves_since = record.serves_since

    @property
    def failures(self) -> int:
        """That count against the budget."""
        return self._failures

    @property
    def spent(self) -> bool:
        return self._failures > self._allowed

    @property
    def quarantined(self) -> bool:
        return self._quarantined_at is not None

    @property
    def on_trial(self) -> bool:
        """It is, or was lately, quarantined, and has given nothing since."""
        return self.quarantined or self._in_vain_s > 0

    def in_vain_s(self, now: float) -> float:
        """How long it has been quarantined since it was last of use."""
        return self._in_vain_s + (now - self._quarantined_at if self._quarantined_at is not None else 0.0)

    @property
    def pause_s(self) -> float:
        """Before the next start. Doubles with every failure; in quarantine from a new beginning and up to a higher
        limit."""
        if not self.spent:
            return float(min(2.0**self._failures, settings.RESTART_PAUSE_MAX_S))
        tries = self._failures - self._allowed - 1
        return float(min(settings.PROBE_PAUSE_S * 2.0 ** min(tries, 10), settings.PROBE_PAUSE_MAX_S))

    def failed(self, now: float, for_good: bool = False) -> None:
        """`for_good`: nothing is gained by trying again soon."""
        self._heal(now)
        self._failures = 1 + (max(self._failures, self._allowed) if for_good else self._failures)
        self._serves_since = None
        if self.spent and self._quarantined_at is None:
            self._quarantined_at = now

    def served(self, now: float) -> None:
        """The engine serves, since now or already."""
        self._in_vain_s, self._quarantined_at = self.in_vain_s(now), None
        if self._serves_since is None:
            self._serves_since = now

    def useful(self) -> None:
        """It has given tokens since it was started."""
        if not self.quarantined:
            self._in_vain_s = 0.0

    def record(self, now: float) -> EngineRecord:
        """All of it, for the next execution."""
        self._heal(now)
        return EngineRecord(
            failures=self._failures,
            quarantined_at=self._quarantined_at,
            in_vain_s=self._in_vain_s,
            serves_since=self._serves_since,
        )

    def _heal(self, now: float) -> None:
        """An engine that served for long is as good as new."""
        if self._serves_since is not None and now - self._serves_since >= self._heals_s:
            self._failures, self._in_vain_s = 0, 0.0
