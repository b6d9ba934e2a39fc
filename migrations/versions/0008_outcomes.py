"""How an episode ended, and what its environment or agent says of it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trajectories", sa.Column("outcome", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectories", "outcome")
