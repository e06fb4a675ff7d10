"""Samples of topics without a sampled group: their rows have no group.

Null and no empty name, as in report_throughput: comparisons with a group's name never meet it.

Revision: 0014
After: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("lag_samples", "group_name", existing_type=sa.Text(collation="C"), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM lag_samples WHERE group_name IS NULL")
    op.alter_column("lag_samples", "group_name", existing_type=sa.Text(collation="C"), nullable=False)
