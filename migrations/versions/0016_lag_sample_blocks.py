"""Samples of offsets as blocks: one row for each sample of a broker in which something moved, instead of one for each group.

Rows of earlier gateways stay in `lag_samples`: such gateways may still run, and reports read their rows. The gateway drops them, a
day at a time, as they get older than samples are kept.

Revision: 0016
After: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_sample_blocks",
        sa.Column("sampled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("broker", sa.Text(collation="C"), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("based_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("queues", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("kind BETWEEN 0 AND 5", name=op.f("ck_lag_sample_blocks_kind_known")),
        sa.PrimaryKeyConstraint("sampled_at", "broker", name=op.f("pk_lag_sample_blocks")),
        # Blocks are deleted as they age, and new ones reuse their space. The default, a fifth of the table, would take long.
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.05", "toast.autovacuum_vacuum_scale_factor": "0.05"},
    )
    # The blocks are compressed already.
    op.execute("ALTER TABLE lag_sample_blocks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.create_index("ix_lag_sample_blocks_kind", "lag_sample_blocks", ["kind", "sampled_at"])


def downgrade() -> None:
    op.drop_table("lag_sample_blocks")
