"""L8: a turn ends once, nothing is stored after its end, and every row was stored by the attempt that owned the
trajectory at that time."""

from ...activities.store.literals import listed
from ...schemas.status import SegmentKind, TrajectoryStatus
from .check import EPISODES, AuditedRun, Check, Rule

ENDED = listed(TrajectoryStatus.FINISHED, TrajectoryStatus.SCORED, TrajectoryStatus.FAILED)
"""Statuses of trajectories whose every turn is finished, but for the last of an episode that others played: its agent
or its time may have ended before it."""

OUTCOMES = f"""
    SELECT t.group_id, t.index AS episode, e.episodes
    FROM trajectories t JOIN ({EPISODES}) e USING (group_id) WHERE t.run_id = :run AND t.outcome IS NOT NULL
"""
"""Episodes that have come to an end of their own."""

RULES = (
    Rule(
        "rows were stored after the end of their turn",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq)
        FROM (
            SELECT group_id, index, turn, seq, count("end") OVER (
                PARTITION BY group_id, index, turn ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS ends
            FROM segments WHERE run_id = :run
        ) ordered
        WHERE ends > 0
        """,
    ),
    Rule(
        "a turn ended more than once, or otherwise than its last segment",
        """
        SELECT concat(t.group_id, '/', t.index, ' turn ', t.turn, ' ended as ', coalesce(t."end", 'nothing'),
                      ', its segments as ', coalesce(s.ends, 'nothing'))
        FROM turns t LEFT JOIN (
            SELECT group_id, index, turn, string_agg("end", ', ' ORDER BY seq) AS ends
            FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
        ) s USING (group_id, index, turn)
        WHERE t.run_id = :run AND t."end" IS DISTINCT FROM s.ends
        """,
    ),
    Rule(
        "a trajectory continued or finished before a turn had ended",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' is ', t.status, ', turn ', coalesce(u.turn, 0), ' has no end')
        FROM trajectories t LEFT JOIN (
            SELECT group_id, index, turn, "end", turn = max(turn) OVER (PARTITION BY group_id, index) AS last
            FROM turns WHERE run_id = :run
        ) u USING (group_id, index)
        LEFT JOIN ({OUTCOMES}) o ON o.group_id = t.group_id AND o.episode = t.index % o.episodes
        WHERE t.run_id = :run AND u."end" IS NULL
            AND (t.status IN ({ENDED}) AND o.episode IS NULL OR NOT u.last)
        """,
    ),
    Rule(
        "a row of an abandoned attempt follows one of its successor",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq, ' of attempt ', fence, ' after ', before)
        FROM (
            SELECT group_id, index, turn, seq, fence,
                   lag(fence) OVER (PARTITION BY group_id, index ORDER BY turn, seq) AS before
            FROM segments WHERE run_id = :run AND kind = {listed(SegmentKind.SAMPLED)}
        ) ordered
        WHERE fence < before
        """,
    ),
    Rule(
        "a row was stored by an attempt that never owned the trajectory",
        """
        SELECT concat(s.group_id, '/', s.index, ' segment ', s.seq, ' of attempt ', s.fence, ', owner ', t.fence)
        FROM segments s JOIN trajectories t USING (run_id, group_id, index)
        WHERE s.run_id = :run AND s.fence > t.fence
        """,
    ),
)

COUNTS = f"""
SELECT count(*) AS "turns", count("end") AS "ended",
       (SELECT count(*) FROM (
            SELECT FROM segments WHERE run_id = :run AND kind = {listed(SegmentKind.SAMPLED)}
            GROUP BY group_id, index, turn HAVING count(DISTINCT fence) > 1
       ) shared) AS "by several attempts"
FROM turns WHERE run_id = :run
"""


def answers(run: AuditedRun) -> Check:
    counts = {**run.counts(COUNTS), "late results refused": run.refused_results}
    return Check("L8", "one answer per turn", counts, run.broken(RULES))
