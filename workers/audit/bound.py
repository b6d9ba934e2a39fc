"""L1: a group with tag V is trained in a buffer from V to V + eta, on tokens of version V or newer.

The bound is that of the run's configuration, and the tag that of the group: the copies in `batch_members`, on which the
database's own check works, are compared with them.
"""

from .check import AuditedRun, Check, Rule

RULES = (
    Rule(
        "a trajectory was trained outside V..V+eta",
        """
        SELECT concat(m.group_id, '/', m.index, ' in buffer ', m.buffer, ', tag ', g.version_tag)
        FROM batch_members m JOIN groups g USING (run_id, group_id)
        WHERE m.run_id = :run AND m.buffer NOT BETWEEN g.version_tag AND g.version_tag + :eta
        """,
    ),
    Rule(
        "a batch holds another tag or another eta than the group and the run",
        """
        SELECT concat(m.group_id, '/', m.index, ' has tag ', m.version_tag, ' and eta ', m.staleness)
        FROM batch_members m JOIN groups g USING (run_id, group_id)
        WHERE m.run_id = :run AND (m.version_tag <> g.version_tag OR m.staleness <> :eta)
        """,
    ),
    Rule(
        "tokens are older than their group's tag",
        """
        SELECT concat(s.group_id, '/', s.index, ' segment ', s.seq, ' of version ', s.version, ', tag ', g.version_tag)
        FROM segments s JOIN groups g USING (run_id, group_id)
        WHERE s.run_id = :run AND s.version < g.version_tag
        """,
    ),
    Rule(
        "trained tokens are newer than the model that trained on them",
        """
        SELECT concat(s.group_id, '/', s.index, ' segment ', s.seq, ' of version ', s.version, ', buffer ', m.buffer)
        FROM segments s JOIN batch_members m USING (run_id, group_id, index)
        WHERE s.run_id = :run AND s.version > m.buffer
        """,
    ),
    Rule(
        "tokens come from a version that was never published",
        """
        SELECT concat('version ', s.version, ' in ', count(*), ' segments, first of group ', min(s.group_id))
        FROM segments s WHERE s.run_id = :run
            AND s.version NOT IN (SELECT version FROM weight_versions WHERE run_id = :run)
        GROUP BY s.version
        """,
    ),
    Rule(
        "a group is tagged with a version that was never published",
        """
        SELECT concat(g.group_id, ' has tag ', g.version_tag) FROM groups g WHERE g.run_id = :run
            AND g.version_tag NOT IN (SELECT version FROM weight_versions WHERE run_id = :run)
        """,
    ),
)

COUNTS = """
SELECT (SELECT count(*) FROM batch_members WHERE run_id = :run) AS "trained trajectories",
       (SELECT max(buffer - version_tag) FROM batch_members WHERE run_id = :run) AS "buffers after their tag at most",
       :eta AS "allowed (eta)",
       (SELECT count(*) FROM segments WHERE run_id = :run) AS "segments",
       (SELECT count(DISTINCT version) FROM segments WHERE run_id = :run) AS "versions in them"
"""


def bound(run: AuditedRun) -> Check:
    return Check("L1", "bound", run.counts(COUNTS), run.broken(RULES))
