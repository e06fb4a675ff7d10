"""Producer groups: the URLs that are asked about open transactions.

Revision: 0025
After: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "producer_groups",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("check_url", sa.Text(), nullable=False),
        sa.Column("check_secret", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_producer_groups")),
    )


def downgrade() -> None:
    op.drop_table("producer_groups")
