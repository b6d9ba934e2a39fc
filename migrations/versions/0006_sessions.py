"""Sessions: conversations with agents from outside, the branches they make, and the keys of their turns."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("episode", sa.Integer(), nullable=False),
        sa.Column("episodes", sa.Integer(), nullable=False),
        sa.Column("token_digest", sa.LargeBinary(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("status", sa.Text(), server_default="running", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('running', 'hung', 'closing', 'closed')", name=op.f("ck_sessions_status_known")),
        sa.CheckConstraint("episode >= 0 AND episode < episodes", name=op.f("ck_sessions_episode_of_the_group")),
        sa.ForeignKeyConstraint(
            ["run_id", "group_id"],
            ["groups.run_id", "groups.group_id"],
            name=op.f("fk_sessions_run_id_group_id_groups"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "session_id", name=op.f("pk_sessions")),
    )
    op.create_index(
        op.f("ix_sessions_run_id_group_id_episode"), "sessions", ["run_id", "group_id", "episode"], unique=True
    )
    op.add_column("trajectories", sa.Column("forked_index", sa.Integer(), nullable=True))
    op.add_column("trajectories", sa.Column("forked_turn", sa.Integer(), nullable=True))
    op.create_check_constraint(
        op.f("ck_trajectories_fork_is_whole"), "trajectories", "num_nonnulls(forked_index, forked_turn) <> 1"
    )
    op.create_check_constraint(
        op.f("ck_trajectories_forked_from_an_earlier_one"), "trajectories", "forked_index < index"
    )
    op.add_column("turns", sa.Column("key", sa.Text(), nullable=True))
    op.add_column("turns", sa.Column("node", sa.Text(), nullable=True))
    op.create_index("uq_turns_run_id_group_id_key", "turns", ["run_id", "group_id", "key"], unique=True)


def downgrade() -> None:
    op.drop_index("uq_turns_run_id_group_id_key", "turns")
    op.drop_column("turns", "node")
    op.drop_column("turns", "key")
    op.drop_constraint(op.f("ck_trajectories_forked_from_an_earlier_one"), "trajectories")
    op.drop_constraint(op.f("ck_trajectories_fork_is_whole"), "trajectories")
    op.drop_column("trajectories", "forked_turn")
    op.drop_column("trajectories", "forked_index")
    op.drop_table("sessions")
