"""What an audit says, and how a rule is asked: as a query whose answer is empty while the promise holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from ...activities.store.literals import listed
from ...schemas.ids import RunId
from ...schemas.messages.data import Purpose

EPISODES = f"""
    SELECT group_id, CASE purpose WHEN {listed(Purpose.TRAIN)} THEN :offered
                                  WHEN {listed(Purpose.VALIDATION)} THEN :validated ELSE 1 END AS episodes
    FROM groups WHERE run_id = :run
"""
"""How many episodes each group has: branch k of episode e has index e + k * episodes."""

SHOWN = 10
"""Ids named per finding; the total is always told."""


@dataclass(frozen=True)
class Finding:
    """One rule that does not hold."""

    fault: str
    ids: tuple[str, ...]
    """The first `SHOWN` of what breaks it."""
    total: int


@dataclass(frozen=True)
class Check:
    """One promise, what was looked at, and what breaks it."""

    promise: str
    name: str
    counts: dict[str, int]
    """What was looked at -> how many, in the order in which people read it."""
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings


class Rule(NamedTuple):
    fault: str
    query: str
    """One column of text: the id of what breaks the rule. May use every key of `AuditedRun.parameters`."""


@dataclass(frozen=True)
class AuditedRun:
    """One run within the transaction of its audit."""

    connection: Connection
    run_id: RunId
    phase: str
    refused_results: int
    parameters: dict[str, Any] = field(repr=False)
    """Of every query: `run`, `phase`, and the limits that the run was admitted with."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.connection.execute(text(query), self.parameters)]

    def counts(self, query: str) -> dict[str, int]:
        """Of a query with one row: its columns by name."""
        row = self.connection.execute(text(query), self.parameters).one()
        return {name: int(value or 0) for name, value in row._mapping.items()}

    def broken(self, rules: Iterable[Rule]) -> tuple[Finding, ...]:
        found = []
        for rule in rules:
            limited = f"SELECT id, count(*) OVER () FROM ({rule.query}) AS broken (id) ORDER BY id LIMIT {SHOWN}"
            if rows := self.rows(limited):
                found.append(Finding(rule.fault, tuple(str(row[0]) for row in rows), int(rows[0][1])))
        return tuple(found)


def finding(fault: str, ids: Sequence[str]) -> tuple[Finding, ...]:
    """Of ids found outside the database; empty for none."""
    return (Finding(fault, tuple(ids[:SHOWN]), len(ids)),) if ids else ()
