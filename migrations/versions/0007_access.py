"""Access to sessions: the token of a run, and sessions found by theirs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("token", sa.Text(), nullable=True))
    op.create_unique_constraint(op.f("uq_runs_token"), "runs", ["token"])
    op.create_index(op.f("ix_sessions_token_digest"), "sessions", ["token_digest"])


def downgrade() -> None:
    op.drop_index(op.f("ix_sessions_token_digest"), "sessions")
    op.drop_constraint(op.f("uq_runs_token"), "runs")
    op.drop_column("runs", "token")
