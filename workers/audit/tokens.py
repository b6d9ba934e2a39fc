"""L5: as many log-probs as sampled ids, none for the environment's, and no token more or less than turn and trajectory
count; a branch that left another rests on an answer that is there. L6: the stored prefix of a turn has neither a hole
nor a segment that is stored twice."""

from ...activities.store.literals import listed
from ...schemas.status import SegmentKind
from .check import EPISODES, AuditedRun, Check, Rule

SAMPLED, ENVIRONMENT = listed(SegmentKind.SAMPLED), listed(SegmentKind.ENVIRONMENT)

LENGTHS = (
    Rule(
        "a segment's ids or log-probs differ in number from its tokens",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq, ' of ', tokens, ' tokens, ',
                      octet_length(token_ids), ' bytes of ids, ', coalesce(octet_length(logprobs), 0), ' of log-probs')
        FROM segments WHERE run_id = :run
            AND (octet_length(token_ids) <> 4 * tokens
                 OR coalesce(octet_length(logprobs), 0) <> CASE kind WHEN {SAMPLED} THEN 4 * tokens ELSE 0 END)
        """,
    ),
    Rule(
        "tokens that no engine sampled have a version or an instance, or sampled ones have none",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq, ' (', kind, ')')
        FROM segments WHERE run_id = :run
            AND num_nonnulls(version, instance) <> CASE kind WHEN {SAMPLED} THEN 2 ELSE 0 END
        """,
    ),
    Rule(
        "the environment spoke after the policy's answer had begun",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn)
        FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
        HAVING max(seq) FILTER (WHERE kind = {ENVIRONMENT}) > min(seq) FILTER (WHERE kind = {SAMPLED})
        """,
    ),
    Rule(
        "a turn's tokens are not those of its segments",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn, ' counts ', coalesce(t.tokens::text, 'nothing'),
                      ', stored are ', coalesce(s.tokens, 0))
        FROM (SELECT * FROM turns WHERE run_id = :run) t
        FULL JOIN (
            SELECT group_id, index, turn, coalesce(sum(tokens) FILTER (WHERE kind = {SAMPLED}), 0) AS tokens
            FROM segments WHERE run_id = :run GROUP BY group_id, index, turn
        ) s USING (group_id, index, turn)
        WHERE t.tokens IS DISTINCT FROM s.tokens
        """,
    ),
    Rule(
        "a trajectory's tokens are not those of its turns",
        """
        SELECT concat(t.group_id, '/', t.index, ' counts ', t.tokens, ', its turns ', coalesce(s.tokens, 0))
        FROM trajectories t LEFT JOIN (
            SELECT group_id, index, sum(tokens) AS tokens FROM turns WHERE run_id = :run GROUP BY group_id, index
        ) s USING (group_id, index)
        WHERE t.run_id = :run AND t.tokens <> coalesce(s.tokens, 0)
        """,
    ),
    Rule(
        "a turn is longer than data.max_response_length",
        """
        SELECT concat(group_id, '/', index, ' turn ', turn, ' has ', tokens, ' tokens of ', :budget)
        FROM turns WHERE run_id = :run AND tokens > :budget
            AND group_id NOT IN (SELECT group_id FROM sessions WHERE run_id = :run)
        """,
    ),
    Rule(
        "a branch left a turn that has no end, or another episode",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' left ', t.forked_index, ' after turn ', t.forked_turn)
        FROM (SELECT * FROM trajectories WHERE run_id = :run AND forked_index IS NOT NULL) t
        JOIN ({EPISODES}) e USING (group_id)
        LEFT JOIN (SELECT * FROM turns WHERE run_id = :run AND "end" IS NOT NULL) u
            ON u.group_id = t.group_id AND u.index = t.forked_index AND u.turn = t.forked_turn
        WHERE u.turn IS NULL OR t.forked_index % e.episodes <> t.index % e.episodes
        """,
    ),
)
"""An outside agent says itself how long an answer may be."""

TOKENS = f"""
SELECT count(*) AS "segments", sum(tokens) FILTER (WHERE kind = {SAMPLED}) AS "sampled tokens",
       sum(tokens) FILTER (WHERE kind = {ENVIRONMENT}) AS "environment tokens",
       (SELECT count(*) FROM trajectories WHERE run_id = :run) AS "trajectories",
       (SELECT count(forked_index) FROM trajectories WHERE run_id = :run) AS "forks"
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
        FROM turns WHERE run_id = :run GROUP BY group_id, index
        HAVING min(turn) <> 0 OR max(turn) <> count(DISTINCT turn) - 1
        """,
    ),
    Rule(
        "a segment that continues none has kept a KV cache, or lost one",
        f"""
        SELECT concat(group_id, '/', index, ' turn ', turn, ' segment ', seq)
        FROM (
            SELECT *, row_number() OVER (PARTITION BY group_id, index, turn ORDER BY seq) AS number
            FROM segments WHERE run_id = :run AND kind = {SAMPLED}
        ) sampled
        WHERE number = 1 AND kv_kept IS NOT NULL
        """,
    ),
)

TURNS = f"""
SELECT count(*) AS "turns", sum((segments > 1)::int) AS "of several segments", sum((hosts > 1)::int) AS "moved"
FROM (
    SELECT count(*) AS segments, count(DISTINCT instance) AS hosts
    FROM segments WHERE run_id = :run AND kind = {SAMPLED} GROUP BY group_id, index, turn
) turns
"""


def tokens(run: AuditedRun) -> Check:
    return Check("L5", "tokens", run.counts(TOKENS), run.broken(LENGTHS))


def prefix(run: AuditedRun) -> Check:
    return Check("L6", "prefix", run.counts(TURNS), run.broken(PREFIXES))
