"""Subscriptions, copied from the brokers' consumer tables.

Revision: 0003
After: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("client_kind", sa.Text(), nullable=False),
        sa.Column("message_model", sa.Text(), nullable=False),
        sa.Column("expression_type", sa.Text(), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("expression_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("sub_version", sa.BigInteger(), nullable=False),
        sa.Column("clients", JSONB(), nullable=False),
        sa.Column("clients_count", sa.Integer(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "octet_length(expression_sha256) = 32", name=op.f("ck_subscriptions_expression_sha256_size")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subscriptions")),
        sa.UniqueConstraint(
            "group_name", "topic", "client_kind", "expression_type", "expression_sha256", name="uq_subscriptions_asked"
        ),
    )
    op.create_index("ix_subscriptions_topic", "subscriptions", ["topic"])


def downgrade() -> None:
    op.drop_table("subscriptions")
