"""What people were told of their data when a run was admitted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("notes", JSONB(), server_default="[]", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "notes")
