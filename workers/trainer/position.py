"""The position in the data of what was trained on (L12), read from the batches of the store.

It says for people and tools which prompts a checkpoint's weights have seen. The run itself never reads it back: its
position is in its workflow, which the batches are recorded by.
"""

from sqlalchemy import Engine, TextClause, text

from ...activities.store.literals import listed
from ...schemas.ids import RunId
from ...schemas.messages.data import Purpose
from ...schemas.messages.training import DataPosition
from ...schemas.status import GROUP_EXITS, GroupStatus

EXPLAINED = tuple(status for status in GROUP_EXITS if status is not GroupStatus.ABORTED)
"""An aborted group explains nothing: its prompt is drawn again."""

POSITION: TextClause = text(
    f"""
    WITH drawn AS (
        SELECT g.epoch::bigint * r.prompts + g.position AS place,
               g.status IN ({listed(*EXPLAINED)}) AS explained,
               EXISTS (SELECT 1 FROM batch_members m
                       WHERE m.run_id = :run AND m.group_id = g.group_id AND m.buffer < :version) AS trained
        FROM groups g JOIN runs r USING (run_id)
        WHERE g.run_id = :run AND g.purpose = {listed(Purpose.TRAIN)} AND g.epoch >= r.first_epoch
    ),
    places AS (
        SELECT place, bool_or(trained) AS trained, bool_or(trained OR explained) AS settled FROM drawn GROUP BY place
    ),
    open AS (
        SELECT coalesce(min(place) FILTER (WHERE NOT settled), max(place) + 1) AS first FROM places
    )
    SELECT r.data_fingerprint, r.prompts, r.skipped_too_long, r.first_epoch,
           coalesce(open.first, r.first_epoch::bigint * r.prompts) AS first,
           (SELECT count(DISTINCT group_id) FROM batch_members WHERE run_id = :run AND buffer < :version) AS groups,
           (SELECT count(*) FROM batch_members WHERE run_id = :run AND buffer < :version) AS trajectories,
           (SELECT coalesce(array_agg(place ORDER BY place), '{{}}') FROM places WHERE trained AND place >= open.first)
               AS ahead
    FROM runs r, open WHERE r.run_id = :run
    """
)
"""A place may be drawn again, after the end of a run had cut its group short: what became of the place counts."""

LEFT: TextClause = text(
    f"""
    SELECT status, count(*) FROM groups
    WHERE run_id = :run AND purpose = {listed(Purpose.TRAIN)} AND status IN ({listed(*GROUP_EXITS)})
    GROUP BY status ORDER BY status
    """
)


def data_position(store: Engine, run_id: RunId, version: int) -> DataPosition:
    """Of the batches below `version`, which are those that its weights were trained on."""
    values = {"run": run_id, "version": version}
    with store.connect() as connection:
        row = connection.execute(POSITION, values).one()
        left = {status: count for status, count in connection.execute(LEFT, values)}  # noqa: C416  (rows are no pairs)
    return DataPosition(
        run_id=run_id,
        version=version,
        data_fingerprint=row.data_fingerprint,
        prompts=row.prompts,
        skipped_too_long=row.skipped_too_long,
        first_epoch=row.first_epoch,
        trained_groups=row.groups,
        trained_trajectories=row.trajectories,
        next_place=row.first,
        next_epoch=row.first // row.prompts,
        next_position=row.first % row.prompts,
        trained_ahead=tuple(row.ahead),
        left=left,
    )
