"""L10: a failure is not a zero. A failed reward is stored as no number and says why; all branches of an episode have
the same; a token without a log-prob is left out of the training and counted."""

from collections import Counter

import numpy
from sqlalchemy import text

from ...activities.store.literals import listed
from ...schemas.status import SegmentKind, TrajectoryStatus
from .check import EPISODES, AuditedRun, Check, Finding, Rule, finding

SCORED, FAILED, ABORTED = (
    listed(one) for one in (TrajectoryStatus.SCORED, TrajectoryStatus.FAILED, TrajectoryStatus.ABORTED)
)

RULES = (
    Rule(
        "a trajectory was trained without a reward",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' is ', t.status, ' with reward ', coalesce(t.reward::text, 'none'))
        FROM batch_members m JOIN trajectories t USING (run_id, group_id, index)
        WHERE m.run_id = :run AND (t.reward IS NULL OR t.status <> {SCORED})
        """,
    ),
    Rule(
        "a scored trajectory has no finite reward",
        f"""
        SELECT concat(group_id, '/', index, ' has reward ', coalesce(reward::text, 'none')) FROM trajectories
        WHERE run_id = :run AND status = {SCORED}
            AND (reward IS NULL OR reward IN ('NaN', 'Infinity', '-Infinity'))
        """,
    ),
    Rule(
        "a trajectory that was not scored has a reward",
        f"""
        SELECT concat(group_id, '/', index, ' is ', status, ' with reward ', reward) FROM trajectories
        WHERE run_id = :run AND status NOT IN ({SCORED}, {ABORTED}) AND reward IS NOT NULL
        """,
    ),
    Rule(
        "a failed reward does not say why",
        f"""
        SELECT concat(group_id, '/', index) FROM trajectories
        WHERE run_id = :run AND status = {FAILED} AND reward_error = ''
        """,
    ),
    Rule(
        "branches of one episode have different scores",
        f"""
        SELECT concat(t.group_id, '/', t.index, ' is ', t.status, ' with reward ', coalesce(t.reward::text, 'none'),
                      ', ', first.index, ' is ', first.status, ' with ', coalesce(first.reward::text, 'none'))
        FROM (SELECT * FROM trajectories WHERE run_id = :run) t JOIN ({EPISODES}) e USING (group_id)
        JOIN (SELECT * FROM trajectories WHERE run_id = :run) first
            ON first.group_id = t.group_id AND first.index = t.index % e.episodes
        JOIN (SELECT DISTINCT group_id, index FROM turns WHERE run_id = :run AND "end" IS NOT NULL) u
            ON u.group_id = t.group_id AND u.index = t.index
        WHERE t.index >= e.episodes AND first.status IN ({SCORED}, {FAILED})
            AND (t.status, t.reward) IS DISTINCT FROM (first.status, first.reward)
        """,
    ),
)

COUNTS = f"""
SELECT coalesce(sum((status = {SCORED})::int), 0) AS "trajectories scored",
       coalesce(sum((status = {FAILED})::int), 0) AS "failed"
FROM trajectories WHERE run_id = :run
"""

TRAINED_LOGPROBS = f"""
SELECT m.buffer, s.logprobs FROM segments s JOIN batch_members m USING (run_id, group_id, index)
JOIN turns u USING (run_id, group_id, index, turn)
WHERE s.run_id = :run AND s.kind = {listed(SegmentKind.SAMPLED)} AND u."end" IS NOT NULL
"""

COUNTED = """
SELECT buffer, (metrics->'log_probs'->>'untrainable_tokens')::bigint FROM step_metrics WHERE run_id = :run
"""

ROWS_AT_ONCE = 2000


def rewards(run: AuditedRun) -> Check:
    missing = _missing_logprobs(run)
    counts = {**run.counts(COUNTS), "trained tokens without a log-prob": missing.total()}
    return Check("L10", "a failure is not a zero", counts, (*run.broken(RULES), *_uncounted(run, missing)))


def _missing_logprobs(run: AuditedRun) -> Counter[int]:
    """By buffer. The values are bytes to the database, so they are read, a few thousand segments at a time."""
    missing: Counter[int] = Counter()
    rows = run.connection.execute(text(TRAINED_LOGPROBS).execution_options(yield_per=ROWS_AT_ONCE), run.parameters)
    for buffer, logprobs in rows:
        values = numpy.frombuffer(logprobs, dtype="<f4", count=len(logprobs) // 4)
        missing[buffer] += values.size - int(numpy.isfinite(values).sum())
    return missing


def _uncounted(run: AuditedRun, missing: Counter[int]) -> tuple[Finding, ...]:
    """Of steps that are recorded; the newest batch may have none yet."""
    wrong = [
        f"buffer {buffer} counted {counted}, stored are {missing[buffer]}"
        for buffer, counted in sorted(run.rows(COUNTED))
        if counted != missing[buffer]
    ]
    return finding("tokens without a log-prob were not counted", wrong)
