"""Secrets that all gateways share: the key that signs receipts.

Revision: 0024
After: 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gateway_secrets",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateway_secrets")),
    )


def downgrade() -> None:
    op.drop_table("gateway_secrets")
