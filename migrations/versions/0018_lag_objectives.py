"""Objectives: the maximum lag of a group, on all topics (topic '') or on one.

Revision: 0018
After: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_objectives",
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), server_default=sa.text("''::text"), nullable=False),
        sa.Column("max_lag_seconds", sa.Double(), nullable=True),
        sa.Column("max_lag_messages", sa.BigInteger(), nullable=True),
        sa.Column("ignore", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("ignore_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("max_lag_seconds > 0", name=op.f("ck_lag_objectives_seconds_positive")),
        sa.CheckConstraint("max_lag_messages >= 0", name=op.f("ck_lag_objectives_messages_counted")),
        sa.PrimaryKeyConstraint("group_name", "topic", name=op.f("pk_lag_objectives")),
    )


def downgrade() -> None:
    op.drop_table("lag_objectives")
