"""What must hold of every run, asked of the store alone: the promises as queries whose answer is empty."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

VIOLATIONS = {
    "L1: a trained token is older than its group's tag": """
        select s.* from segments s join batch_members m using (run_id, group_id, index)
        where s.run_id = :run and s.version < m.version_tag""",
    "L1: a trained token is newer than the model that trained on it": """
        select s.* from segments s join batch_members m using (run_id, group_id, index)
        where s.run_id = :run and s.version > m.buffer""",
    "L1: a buffer is outside V..V+eta of the configuration": """
        select m.* from batch_members m join runs r using (run_id)
        where run_id = :run and not m.buffer between m.version_tag
          and m.version_tag + (r.config->'psrl'->>'staleness')::int""",
    "L1: a member's tag is not its group's": """
        select m.* from batch_members m join groups g using (run_id, group_id)
        where run_id = :run and m.version_tag <> g.version_tag""",
    "L2: a group is in two batches": """
        select group_id from batch_members where run_id = :run group by group_id having count(distinct buffer) > 1""",
    "L2: a group was not trained as a whole": """
        select group_id from batch_members m join runs r using (run_id) where run_id = :run
        group by group_id, r.config having count(*) <> (r.config->'psrl'->>'rollout_n')::int""",
    "L2: a prompt was trained twice in one epoch": """
        select epoch, row from groups where run_id = :run and purpose = 'train' and status = 'trained'
        group by epoch, row having count(*) > 1""",
    "L2: a drawn group is neither trained nor accounted for": """
        select group_id, status from groups where run_id = :run and purpose = 'train'
          and status not in ('trained', 'filtered', 'failed', 'aborted', 'dropped', 'deadline')""",
    "L2: a trained group is in no batch, or one in a batch is not trained": """
        select g.group_id from groups g left join batch_members m using (run_id, group_id)
        where run_id = :run and (g.status = 'trained') <> (m.group_id is not null)""",
    "L5: ids and log-probs differ in length": """
        select * from segments where run_id = :run
          and (octet_length(token_ids) <> 4 * tokens or octet_length(logprobs) <> 4 * tokens)""",
    "L5: a trajectory's tokens are not those of its segments": """
        select t.group_id, t.index from trajectories t join segments s using (run_id, group_id, index)
        where run_id = :run and t.status = 'scored'
        group by t.group_id, t.index, t.tokens having sum(s.tokens) <> t.tokens""",
    "L6: segments have holes": """
        select group_id, index from segments where run_id = :run group by group_id, index, turn
        having max(seq) <> count(*) - 1""",
    "L10: a trained trajectory has no reward": """
        select m.* from batch_members m join trajectories t using (run_id, group_id, index)
        where run_id = :run and (t.reward is null or t.status <> 'scored')""",
}


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


async def promises_hold(store: AsyncEngine, run_id: str) -> Kept:
    async with store.connect() as connection:
        broken = {}
        for promise, query in VIOLATIONS.items():
            if rows := (await connection.execute(text(query), {"run": run_id})).all():
                broken[promise] = rows[:3]
        assert not broken, broken

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
