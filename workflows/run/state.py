"""Everything a run is: one mutable object that is carried as it is from one execution to the next. Small: ids, counts
and the ledger; no tokens.

Owned by `TrainingRun`. Its parts are pure and have the rules; whatever else a run holds in memory is a view of it or a
task that can be begun anew.
"""

from functools import cached_property

from pydantic import Field

from ...schemas.config import RunConfig
from ...schemas.ids import GroupId
from ...schemas.messages.data import Admission
from .absence import Absence
from .carried import Carried
from .control import Control
from .fleet import Fleet
from .groups import Groups
from .rounds import Rounds


class Position(Carried):
    """Of the data."""

    next_group: int = 0
    """Number of the next group to draw."""
    next_place: int = 0
    """Place of the data that is drawn next."""
    redraw: list[int] = []
    """Places to draw first: their groups were given up when the run ended before."""

    def take(self) -> int:
        """The place of the next group."""
        if self.redraw:
            return self.redraw.pop(0)
        self.next_place += 1
        return self.next_place - 1


class RunState(Carried):
    admission: Admission
    control: Control
    groups: Groups
    position: Position = Field(default_factory=Position)
    open_batch: tuple[GroupId, ...] = ()
    """Groups of a batch that was recorded before the run ended, and is trained first."""
    fleet: Fleet = Field(default_factory=Fleet)
    rounds: Rounds = Field(default_factory=Rounds)
    absence: Absence = Field(default_factory=Absence)
    swept_at: float = 0.0
    """When the last sweep began: steps may be shorter than the time between two."""
    stuck_s: float = 0.0
    """For how long nothing could be started although nothing was in flight and an instance serves."""
    idle_since: float = 0.0
    """When the trainer began to wait for the next buffer."""
    reward_mean: float | None = None
    unannounced: bool = False
    """The instances have not been told of the newest version (`sync.seamless_train_version`)."""

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.model_validate(self.admission.config)

    @property
    def version(self) -> int:
        return self.groups.ledger.version

    @property
    def trained_all(self) -> bool:
        return self.version >= self.admission.total_steps

    @property
    def over(self) -> bool:
        """Nothing new is begun: every step is trained, or somebody asked the run to stop."""
        return self.control.stopping or self.trained_all

    def due(self, version: int, every: int) -> bool:
        """Whether something that is done every so many versions is done at this one; the last is always due."""
        return version == self.admission.total_steps or (every > 0 and version % every == 0)

    def seen(self, now: float) -> None:
        """Somebody runs the workflow."""
        if away_s := self.absence.seen(now):
            self.groups.forgive(away_s, now)
