"""Redrives: dead letters that were sent again, so that none is sent twice.

Revision: 0022
After: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dead_letter_redrives",
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("stored_id", sa.Text(collation="C"), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("group_name", "stored_id", name=op.f("pk_dead_letter_redrives")),
    )
    op.create_index("ix_dead_letter_redrives_began_at", "dead_letter_redrives", ["began_at"])


def downgrade() -> None:
    op.drop_table("dead_letter_redrives")
