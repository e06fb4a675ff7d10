"""Rows of lag reports: one for each queue and one for each topic of a group.

Revision: 0009
After: 0008
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_lag_rows",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("broker", sa.Text(collation="C"), nullable=True),
        sa.Column("queue_id", sa.Integer(), nullable=True),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lag_messages", sa.BigInteger(), nullable=True),
        sa.Column("lag_seconds", sa.Double(), nullable=True),
        sa.Column("oldest_unconsumed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("in_rate", sa.Double(), nullable=True),
        sa.Column("out_rate", sa.Double(), nullable=True),
        sa.Column("drain_eta_s", sa.Double(), nullable=True),
        sa.Column("drain_eta_low_s", sa.Double(), nullable=True),
        sa.Column("drain_eta_high_s", sa.Double(), nullable=True),
        sa.Column("retention_left_s", sa.Double(), nullable=True),
        sa.Column("skew", sa.Double(), nullable=True),
        sa.Column("top_tags", JSONB(none_as_null=True), nullable=True),
        sa.Column("clients", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("next_step", sa.Text(), nullable=True),
        sa.Column("evidence", JSONB(none_as_null=True), nullable=True),
        sa.CheckConstraint("level IN ('queue', 'topic')", name=op.f("ck_report_lag_rows_level_known")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["report_runs.id"], name=op.f("fk_report_lag_rows_run_id_report_runs"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint(
            "run_id",
            "group_name",
            "topic",
            "level",
            "broker",
            "queue_id",
            name="uq_report_lag_rows_subject",
            postgresql_nulls_not_distinct=True,
        ),
    )


def downgrade() -> None:
    op.drop_table("report_lag_rows")
