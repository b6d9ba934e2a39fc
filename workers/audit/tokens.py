"""L5: as many log-probs as ids, and no token more or less than the trajectory counts. L6: the stored prefix of a turn
has neither a hole nor a place that is stored twice."""

from .check import AuditedRun, Check, Rule

LENGTHS = (
    Rule(
        "ids and log-probs are not as many as the segment has tokens",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq, ' of ', tokens, ' tokens, ',
                      octet_length(token_ids), ' bytes of ids, ', octet_length(logprobs), ' of log-probs')
        FROM segments WHERE run_id = :run
            AND (octet_length(token_ids) <> 4 * tokens OR octet_length(logprobs) <> 4 * tokens)
        """,
    ),
    Rule(
        "a trajectory's tokens are not those of its segments",
        """
        SELECT concat(t.group_id, '/', t.index, ' counts ', t.tokens, ', stored are ', coalesce(s.tokens, 0))
        FROM trajectories t LEFT JOIN (
            SELECT group_id, index, sum(tokens) AS tokens FROM segments WHERE run_id = :run GROUP BY group_id, index
        ) s USING (group_id, index)
        WHERE t.run_id = :run AND t.tokens <> coalesce(s.tokens, 0)
        """,
    ),
    Rule(
        "a turn is longer than data.max_response_length",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' has ', sum(tokens), ' tokens of ', :budget)
        FROM segments WHERE run_id = :run GROUP BY group_id, index, turn HAVING sum(tokens) > :budget
        """,
    ),
)

TOKENS = """
SELECT count(*) AS "segments", sum(tokens) AS "tokens",
       (SELECT count(*) FROM trajectories WHERE run_id = :run) AS "trajectories"
FROM segments WHERE run_id = :run
"""

PREFIXES = (
    Rule(
        "segments of a turn are missing or stored twice",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' has segments ', string_agg(seq::text, ', ' ORDER BY seq))
        FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
        HAVING min(seq) <> 0 OR max(seq) <> count(*) - 1 OR count(DISTINCT seq) <> count(*)
        """,
    ),
    Rule(
        "turns are missing",
        """
        SELECT concat(group_id, '/', index, ' has ', count(DISTINCT turn), ' turns, the last is turn ', max(turn))
        FROM segments WHERE run_id = :run GROUP BY group_id, index
        HAVING min(turn) <> 0 OR max(turn) <> count(DISTINCT turn) - 1
        """,
    ),
)

TURNS = """
SELECT count(*) AS "turns", sum((segments > 1)::int) AS "of several segments", sum((hosts > 1)::int) AS "moved"
FROM (
    SELECT count(*) AS segments, count(DISTINCT instance) AS hosts
    FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
) turns
"""


def tokens(run: AuditedRun) -> Check:
    return Check("L5", "tokens", run.counts(TOKENS), run.broken(LENGTHS))


def prefix(run: AuditedRun) -> Check:
    return Check("L6", "prefix", run.counts(TURNS), run.broken(PREFIXES))
