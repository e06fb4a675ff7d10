"""Lag reports: since when a group is behind, and the owners of the queues with a lag; null in older rows.

Revision: 0017
After: 0016
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("report_lag_rows", sa.Column("behind_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("report_lag_rows", sa.Column("owners", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("report_lag_rows", "owners")
    op.drop_column("report_lag_rows", "behind_since")
