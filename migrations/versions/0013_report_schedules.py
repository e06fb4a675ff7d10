"""Schedules of report jobs. The scheduler writes them, and the gateway shows them.

Revision: 0013
After: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_schedules",
        sa.Column("job", sa.Text(collation="C"), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_report_schedules")),
    )


def downgrade() -> None:
    op.drop_table("report_schedules")
