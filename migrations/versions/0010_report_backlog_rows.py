"""Rows of backlog profiles: histograms of the unconsumed messages of a group and topic.

Revision: 0010
After: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_backlog_rows",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("section", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("lower_bound", sa.Double(), nullable=True),
        sa.Column("upper_bound", sa.Double(), nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "section IN ('age', 'tag', 'key', 'size', 'queue')", name=op.f("ck_report_backlog_rows_section_known")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["report_runs.id"], name=op.f("fk_report_backlog_rows_run_id_report_runs"), ondelete="CASCADE"
        ),
    )
    # The index is not unique with the bucket, because a message's key may be longer than an index entry.
    op.create_index("ix_report_backlog_rows_run_id", "report_backlog_rows", ["run_id", "group_name", "topic", "section"])


def downgrade() -> None:
    op.drop_table("report_backlog_rows")
