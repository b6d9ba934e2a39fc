"""Turns get a table, segments a kind, trajectories the numbers beside their reward; the database checks statuses."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from psrl.schemas.errors import StoreRevisionMismatch

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TRAJECTORY = ["run_id", "group_id", "index"]
TURN = [*TRAJECTORY, "turn"]

CHECKS = {
    "groups": {
        "status_known": "status IN ('live', 'trained', 'filtered', 'failed', 'aborted', 'dropped', 'deadline')",
    },
    "trajectories": {"status_known": "status IN ('pending', 'finished', 'scored', 'failed', 'aborted')"},
    "segments": {
        "kind_known": "kind IN ('sampled', 'environment')",
        "end_known": "\"end\" IN ('stop', 'length')",
        "sampled_by_an_engine": "CASE WHEN kind IN ('sampled') THEN num_nonnulls(version, instance, logprobs) = 3"
        ' ELSE num_nonnulls(version, instance, logprobs, kv_kept, "end") = 0 END',
    },
}
SAMPLED_ONLY = ("version", "instance", "logprobs")

TURNS_OF_SEGMENTS = """
INSERT INTO turns (run_id, group_id, index, turn, tokens, "end", started_at, finished_at)
SELECT run_id, group_id, index, turn, sum(tokens), max("end"), min(started_at),
       CASE WHEN max("end") IS NOT NULL THEN max(finished_at) END
FROM segments GROUP BY run_id, group_id, index, turn
"""

ENDS_OF_TRAJECTORIES = """
UPDATE trajectories t SET "end" = last."end"
FROM (SELECT DISTINCT ON (run_id, group_id, index) * FROM turns ORDER BY run_id, group_id, index, turn DESC) last
WHERE (last.run_id, last.group_id, last.index) = (t.run_id, t.group_id, t.index)
"""


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("\"end\" IN ('stop', 'length')", name=op.f("ck_turns_end_known")),
        sa.CheckConstraint('("end" IS NULL) = (finished_at IS NULL)', name=op.f("ck_turns_finished_with_its_end")),
        sa.ForeignKeyConstraint(
            TRAJECTORY,
            [f"trajectories.{column}" for column in TRAJECTORY],
            name=op.f("fk_turns_run_id_group_id_index_trajectories"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(*TURN, name=op.f("pk_turns")),
    )
    op.execute(TURNS_OF_SEGMENTS)
    op.drop_column("trajectories", "end")
    op.add_column(
        "trajectories",
        sa.Column("reward_metrics", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
    )
    op.add_column("segments", sa.Column("kind", sa.Text(), server_default="sampled", nullable=False))
    op.add_column("segments", sa.Column("kv_kept", sa.Boolean(), nullable=True))
    for column in SAMPLED_ONLY:
        op.alter_column("segments", column, nullable=True)
    op.drop_constraint(op.f("fk_segments_run_id_group_id_index_trajectories"), "segments", type_="foreignkey")
    op.create_foreign_key(
        op.f("fk_segments_run_id_group_id_index_turn_turns"), "segments", "turns", TURN, TURN, ondelete="CASCADE"
    )
    # Allowed by the revision before, though nothing wrote it: a complete group is one that may still be trained on.
    op.execute("UPDATE groups SET status = 'live' WHERE status = 'complete'")
    for table, checks in CHECKS.items():
        for name, condition in checks.items():
            op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, condition)


def downgrade() -> None:
    """Refused when it would make sampled tokens of the environment's: the revision before knows no others."""
    if op.get_bind().scalar(sa.text("SELECT EXISTS (SELECT 1 FROM segments WHERE kind <> 'sampled')")):
        raise StoreRevisionMismatch(
            "the store holds trajectories with environment tokens, which revision 0002 would train on: delete their "
            "runs first"
        )
    for table, checks in CHECKS.items():
        for name in checks:
            op.drop_constraint(op.f(f"ck_{table}_{name}"), table, type_="check")
    op.drop_constraint(op.f("fk_segments_run_id_group_id_index_turn_turns"), "segments", type_="foreignkey")
    op.create_foreign_key(
        op.f("fk_segments_run_id_group_id_index_trajectories"),
        "segments",
        "trajectories",
        TRAJECTORY,
        TRAJECTORY,
        ondelete="CASCADE",
    )
    for column in SAMPLED_ONLY:
        op.alter_column("segments", column, nullable=False)
    op.drop_column("segments", "kv_kept")
    op.drop_column("segments", "kind")
    op.drop_column("trajectories", "reward_metrics")
    op.add_column("trajectories", sa.Column("end", sa.Text(), nullable=True))
    op.execute(ENDS_OF_TRAJECTORIES)
    op.drop_table("turns")
