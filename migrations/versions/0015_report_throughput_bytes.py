"""Throughput without bytes: it is computed from samples of offsets, which do not contain sizes.

Revision: 0015
After: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("report_throughput", "bytes")


def downgrade() -> None:
    op.add_column("report_throughput", sa.Column("bytes", sa.BigInteger(), nullable=True))
