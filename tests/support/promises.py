"""What must hold of every run: the audit, which is also what `psrl audit` says, and what the run left."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.ids import RunId
from psrl.workers.audit.audit import audit


@dataclass(frozen=True)
class Kept:
    """What a run left in the store."""

    batches: int
    trained_groups: int
    drawn_groups: int
    statuses: dict[str, int]
    """Of training groups."""
    ages: dict[int, int]
    """Trained trajectories by buffer - tag."""


async def promises_hold(store: AsyncEngine, run_id: str, weights: Path | None = None) -> Kept:
    """With `weights`, the stack's folder of versions, their files are looked at too."""
    async with store.connect() as connection:
        done = await connection.run_sync(audit, RunId(run_id), weights)
        assert done.ok, [check for check in done.checks if not check.ok]

        async def counted(query: str) -> dict:
            return {key: int(count) for key, count in (await connection.execute(text(query), {"run": run_id})).all()}

        statuses = await counted(
            "select status, count(*) from groups where run_id = :run and purpose = 'train' group by status"
        )
        ages = await counted(
            "select buffer - version_tag, count(*) from batch_members where run_id = :run group by buffer - version_tag"
        )
        batches = await connection.scalar(text("select count(*) from batches where run_id = :run"), {"run": run_id})
    return Kept(int(batches or 0), statuses.get("trained", 0), sum(statuses.values()), statuses, ages)
