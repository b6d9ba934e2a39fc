"""L8: a turn ends once, nothing is stored after its end, and every row was stored by the attempt that owned the
trajectory at that time."""

from .check import AuditedRun, Check, Rule

ENDED = "('finished', 'scored', 'failed')"
"""Statuses of trajectories whose last turn is complete: a reward fails only after that."""

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
        "a finished turn has not exactly one end",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' is ', t.status, ', turn ', coalesce(s.turn, 0), ' has ',
                      coalesce(s.ends, 0), ' ends')
        FROM trajectories t LEFT JOIN (
            SELECT group_id, index, turn, count("end") AS ends,
                   turn = max(turn) OVER (PARTITION BY group_id, index) AS last
            FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
        ) s USING (group_id, index)
        WHERE t.run_id = :run AND coalesce(s.ends, 0) <> 1 AND (t.status IN {ENDED} OR NOT s.last)
        """,
    ),
    Rule(
        "a trajectory ended otherwise than its last turn",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' ended as ', coalesce(t."end", 'nothing'), ', its last turn as ',
                      s."end")
        FROM trajectories t JOIN (
            SELECT group_id, index, "end", row_number() OVER (PARTITION BY group_id, index ORDER BY turn DESC) AS place
            FROM segments WHERE run_id = :run AND "end" IS NOT NULL
        ) s USING (group_id, index)
        WHERE t.run_id = :run AND s.place = 1 AND t.status IN {ENDED} AND t."end" IS DISTINCT FROM s."end"
        """,
    ),
    Rule(
        "a row of an abandoned attempt follows one of its successor",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq, ' of attempt ', fence, ' after ', before)
        FROM (
            SELECT group_id, index, turn, seq, fence,
                   lag(fence) OVER (PARTITION BY group_id, index ORDER BY turn, seq) AS before
            FROM segments WHERE run_id = :run
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

COUNTS = """
SELECT count(*) AS "turns", sum(ended) AS "ended", sum((attempts > 1)::int) AS "by several attempts"
FROM (
    SELECT count("end") AS ended, count(DISTINCT fence) AS attempts
    FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
) turns
"""


def answers(run: AuditedRun) -> Check:
    counts = {**run.counts(COUNTS), "late results refused": run.refused_results}
    return Check("L8", "one answer per turn", counts, run.broken(RULES))
