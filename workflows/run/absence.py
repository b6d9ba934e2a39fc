"""Time in which nobody ran the run's workflow, because its stack was down. Pure; part of the run's state."""

from ..calls import settings
from .carried import Carried


class Absence(Carried):
    seen_at: float = 0.0
    """When somebody last ran the workflow; an absence may fall between two executions. 0: never yet."""
    back_at: float = 0.0
    """When it was run again after the last absence: what began before that says nothing about the task."""

    def seen(self, now: float) -> float:
        """Somebody runs the workflow; for how many seconds nobody did, 0 when that is no absence."""
        away_s, self.seen_at = now - (self.seen_at or now), now
        if away_s <= settings.ABSENCE.total_seconds():
            return 0.0
        self.back_at = now
        return away_s
