"""Jobs: long work of the gateways, such as the redrive of dead letters.

Revision: 0021
After: 0020
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("arguments", JSONB(), nullable=False),
        sa.Column("progress", JSONB(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'queued'::text"), nullable=False),
        sa.Column("is_cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claims", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_state_known")
        ),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (state IN ('queued', 'running'))", name=op.f("ck_jobs_ended_has_moment")
        ),
        sa.CheckConstraint("done >= 0 AND failed >= 0 AND total >= 0", name=op.f("ck_jobs_counts_counted")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    # A gateway looks for jobs that are queued, or whose gateway has not renewed its lease.
    op.create_index("ix_jobs_due", "jobs", ["due_at"], postgresql_where=sa.text("state IN ('queued', 'running')"))
    op.create_index("ix_jobs_created_at", "jobs", ["created_at", "id"])


def downgrade() -> None:
    op.drop_table("jobs")
