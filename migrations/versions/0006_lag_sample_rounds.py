"""Rounds of samples: when the gateway sampled all offsets, and which brokers did not answer.

Revision: 0006
After: 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lag_sample_rounds",
        sa.Column("sampled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("took_ms", sa.Integer(), nullable=False),
        sa.Column("missing", ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.PrimaryKeyConstraint("sampled_at", name=op.f("pk_lag_sample_rounds")),
    )


def downgrade() -> None:
    op.drop_table("lag_sample_rounds")
