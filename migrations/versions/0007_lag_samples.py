"""Samples of offsets, partitioned by day.

The gateway makes the partitions (`lag_samples_YYYYMMDD`, a day of UTC each) and drops old ones, so that keeping 90
days costs no DELETE. Arrays stand in the order of `queue_ids`.

Revision: 0007
After: 0006
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_samples",
        sa.Column("sampled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("broker", sa.Text(collation="C"), nullable=False),
        sa.Column("queue_ids", ARRAY(sa.Integer()), nullable=False),
        sa.Column("min_offsets", ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("max_offsets", ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("committed_offsets", ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("first_stored_at_ms", ARRAY(sa.BigInteger()), nullable=False),
        postgresql_partition_by="RANGE (sampled_at)",
    )
    op.create_index("ix_lag_samples_group_name_topic", "lag_samples", ["group_name", "topic", "sampled_at"])


def downgrade() -> None:
    op.drop_table("lag_samples")
