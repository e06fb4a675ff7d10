"""Throughput per minute, hour and day: messages stored in a topic, and messages of a topic that a group consumed.

Revision: 0011
After: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_throughput",
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("bucket_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("rate_max", sa.Double(), nullable=True),
        sa.Column("lag_messages", sa.BigInteger(), nullable=True),
        sa.Column("covered_s", sa.Double(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("unit IN ('minute', 'hour', 'day')", name=op.f("ck_report_throughput_unit_known")),
        sa.UniqueConstraint(
            "unit",
            "bucket_at",
            "topic",
            "group_name",
            name="uq_report_throughput_bucket",
            postgresql_nulls_not_distinct=True,
        ),
    )
    op.create_index("ix_report_throughput_topic", "report_throughput", ["topic", "group_name", "unit", "bucket_at"])


def downgrade() -> None:
    op.drop_table("report_throughput")
