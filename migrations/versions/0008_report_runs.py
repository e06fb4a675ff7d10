"""Runs of report jobs: requested, active and ended.

A window that was given is run once: NULLS NOT DISTINCT makes (job, null, moment) a key, too.

Revision: 0008
After: 0007
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_runs",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("job", sa.Text(collation="C"), nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=True),
        sa.Column("window_end", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), server_default=sa.text("'queued'::text"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress_percent", sa.SmallInteger(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("files", JSONB(none_as_null=True), nullable=True),
        sa.CheckConstraint("trigger IN ('schedule', 'manual')", name=op.f("ck_report_runs_trigger_known")),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'succeeded', 'failed', 'timed_out')",
            name=op.f("ck_report_runs_status_known"),
        ),
        sa.CheckConstraint("progress_percent BETWEEN 0 AND 100", name=op.f("ck_report_runs_percent_range")),
        sa.CheckConstraint("window_start < window_end", name=op.f("ck_report_runs_window_forward")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_report_runs")),
        sa.UniqueConstraint(
            "job", "window_start", "window_end", name="uq_report_runs_window", postgresql_nulls_not_distinct=True
        ),
    )
    op.create_index("ix_report_runs_job_created_at", "report_runs", ["job", "created_at", "id"])
    op.create_index("ix_report_runs_status_created_at", "report_runs", ["status", "created_at"])


def downgrade() -> None:
    op.drop_table("report_runs")
