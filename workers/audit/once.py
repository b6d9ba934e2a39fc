"""L2: a trajectory is trained at most once, an episode with all its branches; a prompt once per epoch, or its loss is
counted and explained.

A place of the data may be drawn again after the end of a run had cut its group short. What is still open while the run
continues, or waits to be drawn again when it is resumed, is counted and no fault.
"""

from ...activities.store.literals import listed
from ...schemas.messages.data import Purpose
from ...schemas.messages.run import RunPhase
from ...schemas.status import GROUP_EXITS, GroupStatus
from .check import AuditedRun, Check, Rule

LIVE, TRAINED, ABORTED = (listed(one) for one in (GroupStatus.LIVE, GroupStatus.TRAINED, GroupStatus.ABORTED))
LEFT = listed(*GROUP_EXITS)
TRAINING, DONE = listed(Purpose.TRAIN), listed(RunPhase.DONE)

TRAINED_PLACES = """
    FROM (SELECT DISTINCT group_id FROM batch_members WHERE run_id = :run) m
    JOIN groups g USING (group_id) WHERE g.run_id = :run
"""

TRAJECTORIES = (
    Rule(
        "a trajectory is in more than one batch",
        """
        SELECT concat(group_id, '/', index, ' in buffers ', string_agg(buffer::text, ', ' ORDER BY buffer))
        FROM batch_members WHERE run_id = :run GROUP BY group_id, index HAVING count(*) > 1
        """,
    ),
    Rule(
        "a group is in more than one batch",
        """
        SELECT concat(group_id, ' in buffers ', min(buffer), ' to ', max(buffer))
        FROM batch_members WHERE run_id = :run GROUP BY group_id HAVING min(buffer) < max(buffer)
        """,
    ),
    Rule(
        "a group was only partly trained on",
        """
        SELECT concat(group_id, ' with ', count(DISTINCT index % :offered), ' trajectories of ', :members)
        FROM batch_members WHERE run_id = :run GROUP BY group_id HAVING count(DISTINCT index % :offered) <> :members
        """,
    ),
    Rule(
        "an episode was only partly trained on",
        """
        SELECT concat(u.group_id, '/', u.index)
        FROM (SELECT DISTINCT group_id, index FROM turns WHERE run_id = :run AND "end" IS NOT NULL) u
        JOIN (SELECT DISTINCT group_id, index % :offered AS episode FROM batch_members WHERE run_id = :run) trained
            ON trained.group_id = u.group_id AND trained.episode = u.index % :offered
        WHERE (u.group_id, u.index) NOT IN (SELECT group_id, index FROM batch_members WHERE run_id = :run)
        """,
    ),
    Rule(
        "a batch holds a group that must not be trained on",
        f"SELECT concat(g.group_id, ' is for ', g.purpose) {TRAINED_PLACES} AND g.purpose <> {TRAINING}",
    ),
    Rule(
        "a trained group is in no batch, or one in a batch is not trained",
        f"""
        SELECT concat(g.group_id, ' is ', g.status) FROM groups g
        LEFT JOIN (SELECT DISTINCT group_id FROM batch_members WHERE run_id = :run) m USING (group_id)
        WHERE g.run_id = :run AND (g.status = {TRAINED}) <> (m.group_id IS NOT NULL)
        """,
    ),
)

BATCHES = (
    Rule(
        "a batch does not have exactly B groups",
        """
        SELECT concat('buffer ', b.buffer, ' with ', count(DISTINCT m.group_id), ' groups of ', :batch_groups)
        FROM batches b LEFT JOIN batch_members m USING (run_id, buffer)
        WHERE b.run_id = :run GROUP BY b.buffer HAVING count(DISTINCT m.group_id) <> :batch_groups
        """,
    ),
    Rule(
        "batches are missing",
        """
        SELECT concat('buffers ', before + 1, ' to ', buffer - 1)
        FROM (
            SELECT buffer, coalesce(lag(buffer) OVER (ORDER BY buffer), -1) AS before
            FROM batches WHERE run_id = :run
        ) ordered
        WHERE buffer > before + 1
        """,
    ),
    Rule(
        "batches and published versions are out of step",
        f"""
        SELECT concat('newest batch is buffer ', batch, ', newest version is ', version)
        FROM (
            SELECT coalesce((SELECT max(buffer) FROM batches WHERE run_id = :run), -1) AS batch,
                   coalesce((SELECT max(version) FROM weight_versions WHERE run_id = :run), -1) AS version
        ) newest
        WHERE batch > version OR batch < version - 1 OR (:phase = {DONE} AND version <> :total_steps)
        """,
    ),
)
"""Version b + 1 comes from buffer b; one more batch may be recorded than was published."""

PROMPTS = (
    Rule(
        "a data position was trained on twice",
        f"""
        SELECT concat('epoch ', epoch, ' position ', position, ' by groups ',
                      string_agg(group_id, ', ' ORDER BY group_id))
        {TRAINED_PLACES} GROUP BY epoch, position HAVING count(*) > 1
        """,
    ),
    Rule(
        "a prompt was trained on twice in one epoch",
        f"""
        SELECT concat('epoch ', epoch, ' row ', row, ' by groups ', string_agg(group_id, ', ' ORDER BY group_id))
        {TRAINED_PLACES} GROUP BY epoch, row HAVING count(DISTINCT position) > 1
        """,
    ),
    Rule(
        "a drawn group was neither trained on nor accounted for",
        f"""
        SELECT concat(group_id, ' is ', status) FROM groups
        WHERE run_id = :run AND purpose = {TRAINING} AND status NOT IN ({TRAINED}, {LEFT})
          AND (:phase = {DONE} OR status <> {LIVE})
        """,
    ),
    Rule(
        "a group was dropped without a reason",
        f"""
        SELECT concat(group_id, ' is ', status) FROM groups
        WHERE run_id = :run AND purpose = {TRAINING} AND status IN ({LEFT}) AND reason = ''
        """,
    ),
    Rule(
        "data positions were skipped",
        f"""
        WITH drawn AS (
            SELECT epoch, position, bool_or(status = {TRAINED}) AS trained
            FROM groups WHERE run_id = :run AND purpose = {TRAINING} AND epoch >= :first_epoch
            GROUP BY epoch, position
        ), placed AS (
            SELECT epoch, position, epoch::bigint * :prompts + position AS place FROM drawn
            WHERE (epoch, position) <= (
                SELECT epoch, position FROM drawn WHERE trained ORDER BY epoch DESC, position DESC LIMIT 1
            )
        ), ordered AS (
            SELECT epoch, position, place,
                   coalesce(lag(place) OVER (ORDER BY epoch, position),
                            CAST(:first_epoch AS bigint) * :prompts - 1) AS before
            FROM placed
        )
        SELECT concat(place - before - 1, ' before epoch ', epoch, ' position ', position)
        FROM ordered WHERE place > before + 1
        """,
    ),
)
"""The newest trained place is the end of what must have been drawn."""

COUNTS = """
SELECT count(DISTINCT group_id) AS "groups", count(*) AS "trajectories",
       (SELECT count(*) FROM batches WHERE run_id = :run) AS "batches"
FROM batch_members WHERE run_id = :run
"""

STATUSES = f"""
SELECT status, count(*) FROM groups
WHERE run_id = :run AND purpose = {TRAINING} AND status <> {TRAINED} GROUP BY status ORDER BY status
"""

CUT_SHORT = f"""
SELECT count(*) AS "places" FROM (
    SELECT 1 FROM groups WHERE run_id = :run AND purpose = {TRAINING} AND epoch >= :first_epoch
    GROUP BY epoch, position HAVING bool_and(status = {ABORTED})
) cut
"""


def once(run: AuditedRun) -> Check:
    counts = run.counts(COUNTS) | {status: int(count) for status, count in run.rows(STATUSES)}
    waiting = run.counts(CUT_SHORT)["places"]
    if waiting and run.phase != RunPhase.DONE:
        counts["data positions waiting to be redrawn"] = waiting
    return Check("L2", "once", counts, run.broken((*TRAJECTORIES, *BATCHES, *PROMPTS)))
