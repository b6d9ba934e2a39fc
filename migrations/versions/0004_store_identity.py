"""An id of the database's own, by which a stack knows that it has reached its own store."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("store_identity", sa.Column("id", sa.Text(), nullable=False), sa.PrimaryKeyConstraint("id"))
    op.execute("INSERT INTO store_identity (id) VALUES (gen_random_uuid()::text)")


def downgrade() -> None:
    op.drop_table("store_identity")
