"""The audit trail: one row for each change.

Revision: 0005
After: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.Text(collation="C"), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("resource_kind", sa.String(32), nullable=False),
        sa.Column("resource_name", sa.Text(collation="C"), nullable=False),
        sa.Column("before", JSONB(none_as_null=True), nullable=True),
        sa.Column("after", JSONB(none_as_null=True), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_resource", "audit", ["resource_kind", "resource_name", "id"])


def downgrade() -> None:
    op.drop_table("audit")
