"""Resets of committed offsets, so that reports tell them apart from consumption.

Revision: 0029
After: 0028
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_offset_resets",
        sa.Column("broker", sa.Text(collation="C"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("is_settled", sa.Boolean(), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("queue_ids", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("from_offsets", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("to_offsets", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.PrimaryKeyConstraint("seen_at", "broker", "epoch", name=op.f("pk_lag_offset_resets")),
    )


def downgrade() -> None:
    op.drop_table("lag_offset_resets")
