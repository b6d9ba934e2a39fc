"""The groups of a run: the ledger, since when each unfinished one runs, and which have left and are not seen off yet.
Pure; part of the run's state.

Promises: a group is in the ledger, or has left with a reason, never both; one that has left stays in `leaving` until
its workflow is cancelled and its row marked, through continue-as-new and through a sweep that was cut short; only
RESERVED groups have a deadline, from the moment their workflows were started.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from ...schemas.ids import GroupId, Version
from ...schemas.messages.run import GroupOutcome, GroupReport
from ...schemas.status import GroupStatus
from ..ledger import Consumption, GroupState, Ledger
from .carried import Carried

LEFT_WITHOUT_FAULT = frozenset({GroupStatus.DROPPED, GroupStatus.ABORTED})
"""Reasons that say nothing about the task."""
REMEMBERED_REASONS = 3


def _ledger(value: object) -> Ledger:
    return value if isinstance(value, Ledger) else Ledger.from_dict(value)  # type: ignore[arg-type]


class Groups(Carried):
    ledger: Annotated[Ledger, PlainValidator(_ledger), PlainSerializer(Ledger.to_dict)]
    started_at: dict[GroupId, float] = {}
    """Start of every RESERVED group, seconds since the epoch by workflow time."""
    coming: list[GroupId] = []
    """Of the wave in progress: they are being drawn, and their workflows need not exist yet."""
    leaving: dict[str, list[GroupId]] = {}
    """Groups that have left, by reason, whose workflows are to be cancelled and whose rows are to be marked."""
    dropped: dict[str, int] = {}
    """Groups that left without being trained on, by reason."""
    failures: int = 0
    """Groups in a row that failed or were late, whatever was filtered between them; 0 after every complete one."""
    drops: int = 0
    """The same of groups that were filtered."""
    last_reasons: list[str] = []
    """Why the most recent of both left."""

    def start(self, version: Version, groups: tuple[GroupId, ...], now: float) -> None:
        self.ledger.reserve(version, groups)
        self.started_at.update(dict.fromkeys(groups, now))
        self.coming = list(groups)

    def begun(self, now: float) -> None:
        """The wave is over: the workflows of its groups exist, and some may have reported already."""
        self.started_at.update({group: now for group in self.coming if group in self.started_at})
        self.coming = []

    def report(self, report: GroupReport, back_at: float) -> bool:
        """False: it changes nothing, the group is not waited for. What a stack's own absence cost, up to `back_at`,
        says nothing about the task."""
        group = report.group_id
        if self.ledger.state(group) is not GroupState.RESERVED:
            return False
        began = self.started_at.pop(group)
        if report.outcome is GroupOutcome.COMPLETE:
            self.ledger.occupy(group)
            self.failures = self.drops = 0
        else:
            self.ledger.release(group)
            self._leave(group, report.outcome.value, report.reason, counts=began > back_at)
        return True

    def give_up(self, groups: Iterable[GroupId], reason: str) -> None:
        """Live groups, or ones that the ledger never held (of an earlier execution of the run)."""
        for group in groups:
            self.started_at.pop(group, None)
            if self.ledger.state(group) is not None:
                self.ledger.release(group)
            self._leave(group, reason, reason, counts=reason not in LEFT_WITHOUT_FAULT)

    def see_off(self, groups: Iterable[GroupId], reason: str) -> None:
        """They left before and are counted; only their workflows and rows do not know yet."""
        if listed := list(groups):
            self.leaving.setdefault(reason, []).extend(listed)

    def seen_off(self, groups: Iterable[GroupId], reason: str) -> None:
        gone = set(groups)
        self.leaving[reason] = [group for group in self.leaving[reason] if group not in gone]
        if not self.leaving[reason]:
            del self.leaving[reason]

    def consume(self) -> Consumption:
        """As the ledger's. What is dropped leaves."""
        consumption = self.ledger.consume()
        self.give_up(consumption.dropped, GroupStatus.DROPPED)
        return consumption

    def forgive(self, away_s: float, now: float) -> None:
        """An absence counts for no group's deadline."""
        self.started_at = {group: min(now, at + away_s) for group, at in self.started_at.items()}

    def older_than(self, seconds: float, now: float) -> tuple[GroupId, ...]:
        """Unfinished groups that began so long ago. How long a wave takes is not their fault."""
        return tuple(group for group, at in self.started_at.items() if now - at > seconds and group not in self.coming)

    @property
    def unfinished(self) -> tuple[GroupId, ...]:
        return tuple(self.started_at)

    def _leave(self, group: GroupId, kind: str, reason: str, counts: bool) -> None:
        self.dropped[kind] = self.dropped.get(kind, 0) + 1
        self.see_off((group,), kind)
        if counts:
            filtered = kind == GroupStatus.FILTERED
            self.drops, self.failures = self.drops + filtered, self.failures + (not filtered)
            self.last_reasons = [*self.last_reasons, f"{group}: {reason}"][-REMEMBERED_REASONS:]
