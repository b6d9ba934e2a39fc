"""What an environment made of a turn, with what is needed to make the environment anew."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("step", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("turns", "step")
