"""The position in the data of what was trained on (L12), read from the batches of the store.

It says for people and tools which prompts a checkpoint's weights have seen. The run itself never reads it back: its
position is in its workflow, which the batches are recorded by.
"""

from sqlalchemy import Engine, TextClause, text

from ...activities.store.groups import EXITS
from ...schemas.ids import RunId
from ...schemas.messages.training import DataPosition

POSITION: TextClause = text(
    """
    WITH drawn AS (
        SELECT CAST(g.group_id AS bigint) AS number, g.status,
               EXISTS (SELECT 1 FROM batch_members m
                       WHERE m.run_id = :run AND m.group_id = g.group_id AND m.buffer < :version) AS trained
        FROM groups g WHERE g.run_id = :run AND g.purpose = 'train'
    ),
    open AS (
        SELECT coalesce(min(number) FILTER (WHERE NOT trained AND status <> ALL(:exits)), max(number) + 1, 0) AS first
        FROM drawn
    )
    SELECT r.data_fingerprint, r.prompts, r.skipped_too_long, open.first,
           (SELECT count(*) FROM drawn WHERE trained) AS groups,
           (SELECT max(number) FROM drawn WHERE trained) AS last,
           (SELECT count(*) FROM batch_members WHERE run_id = :run AND buffer < :version) AS trajectories,
           (SELECT coalesce(array_agg(number ORDER BY number), '{}') FROM drawn WHERE trained AND number >= open.first)
               AS ahead
    FROM runs r, open WHERE r.run_id = :run
    """
)

LEFT: TextClause = text(
    """
    SELECT status, count(*) FROM groups
    WHERE run_id = :run AND purpose = 'train' AND status = ANY(:exits) GROUP BY status ORDER BY status
    """
)


def data_position(store: Engine, run_id: RunId, version: int) -> DataPosition:
    """Of the batches below `version`, which are those that its weights were trained on."""
    values = {"run": run_id, "version": version, "exits": list(EXITS)}
    with store.connect() as connection:
        row = connection.execute(POSITION, values).one()
        left = {status: count for status, count in connection.execute(LEFT, values)}  # noqa: C416  (rows are no pairs)
    return DataPosition(
        run_id=run_id,
        version=version,
        data_fingerprint=row.data_fingerprint,
        prompts=row.prompts,
        skipped_too_long=row.skipped_too_long,
        trained_groups=row.groups,
        trained_trajectories=row.trajectories,
        last_group=row.last,
        next_group=row.first,
        next_epoch=row.first // row.prompts,
        next_place=row.first % row.prompts,
        trained_ahead=tuple(row.ahead),
        left=left,
    )
