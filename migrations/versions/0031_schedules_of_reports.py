"""Schedules of reports that were set over REST, and the time zones of schedules.

Revision: 0031
After: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_schedules_set",
        sa.Column("job", sa.Text(collation="C"), nullable=False),
        sa.Column("cron", sa.Text(), nullable=True),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("set_by", sa.Text(collation="C"), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_report_schedules_set")),
    )
    op.add_column("report_schedules", sa.Column("time_zone", sa.Text(), server_default="UTC", nullable=False))


def downgrade() -> None:
    op.drop_column("report_schedules", "time_zone")
    op.drop_table("report_schedules_set")
