"""The first schema of the store; equals `psrl.schemas.tables` (a test compares them)."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("workflow_run_id", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("skipped_too_long", sa.Integer(), nullable=False),
        sa.Column("validation_prompts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("data_fingerprint", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("refused_results", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_table(
        "batches",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("buffer", sa.Integer(), nullable=False),
        sa.Column("info", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_batches_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "buffer", name=op.f("pk_batches")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("fk_checkpoints_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("scored", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("fk_evaluations_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "groups",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("version_tag", sa.Integer(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_text", sa.Text(), nullable=False),
        sa.Column("data_source", sa.Text(), nullable=False),
        sa.Column("ground_truth", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("extra", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("status", sa.Text(), server_default="live", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_groups_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "group_id", name=op.f("pk_groups")),
    )
    op.create_index(op.f("ix_groups_run_id_status"), "groups", ["run_id", "status"], unique=False)
    op.create_table(
        "step_metrics",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("buffer", sa.Integer(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("train_started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("fk_step_metrics_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "buffer", name=op.f("pk_step_metrics")),
    )
    op.create_table(
        "weight_versions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("transport", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("fk_weight_versions_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_weight_versions")),
    )
    op.create_table(
        "trajectories",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("reward_error", sa.Text(), server_default="", nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scored_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "reward IS NULL OR status IN ('scored', 'aborted')", name=op.f("ck_trajectories_reward_only_when_scored")
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "group_id"],
            ["groups.run_id", "groups.group_id"],
            name=op.f("fk_trajectories_run_id_group_id_groups"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "group_id", "index", name=op.f("pk_trajectories")),
    )
    op.create_table(
        "batch_members",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("buffer", sa.Integer(), nullable=False),
        sa.Column("version_tag", sa.Integer(), nullable=False),
        sa.Column("staleness", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "version_tag <= buffer AND buffer <= version_tag + staleness", name=op.f("ck_batch_members_staleness_bound")
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "buffer"],
            ["batches.run_id", "batches.buffer"],
            name=op.f("fk_batch_members_run_id_buffer_batches"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "group_id", "index"],
            ["trajectories.run_id", "trajectories.group_id", "trajectories.index"],
            name=op.f("fk_batch_members_run_id_group_id_index_trajectories"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "group_id", "index", name=op.f("pk_batch_members")),
    )
    op.create_index(op.f("ix_batch_members_run_id_buffer"), "batch_members", ["run_id", "buffer"], unique=False)
    op.create_table(
        "segments",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("octet_length(logprobs) = 4 * tokens", name=op.f("ck_segments_logprobs_match_count")),
        sa.CheckConstraint("octet_length(token_ids) = 4 * tokens", name=op.f("ck_segments_ids_match_count")),
        sa.ForeignKeyConstraint(
            ["run_id", "group_id", "index"],
            ["trajectories.run_id", "trajectories.group_id", "trajectories.index"],
            name=op.f("fk_segments_run_id_group_id_index_trajectories"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "group_id", "index", "turn", "seq", name=op.f("pk_segments")),
    )


def downgrade() -> None:
    op.drop_table("segments")
    op.drop_index(op.f("ix_batch_members_run_id_buffer"), table_name="batch_members")
    op.drop_table("batch_members")
    op.drop_table("trajectories")
    op.drop_table("weight_versions")
    op.drop_table("step_metrics")
    op.drop_index(op.f("ix_groups_run_id_status"), table_name="groups")
    op.drop_table("groups")
    op.drop_table("evaluations")
    op.drop_table("checkpoints")
    op.drop_table("batches")
    op.drop_table("runs")
