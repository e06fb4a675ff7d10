"""Times in which brokers gave no numbers to the sampler, for histories of a lag.

Revision: 0030
After: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_sample_outages",
        sa.Column("broker", sa.Text(collation="C"), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("broker", "began_at", name=op.f("pk_lag_sample_outages")),
        sa.CheckConstraint("began_at <= ended_at", name=op.f("ck_lag_sample_outages_forward")),
    )
    op.create_index(op.f("ix_lag_sample_outages_ended_at"), "lag_sample_outages", ["ended_at"])


def downgrade() -> None:
    op.drop_table("lag_sample_outages")
