"""Indexes for the filters of the audit trail.

Revision: 0027
After: 0026
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_audit_actor", "audit", ["actor", "id"])
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    op.drop_index("ix_audit_at", "audit")
    op.drop_index("ix_audit_actor", "audit")
