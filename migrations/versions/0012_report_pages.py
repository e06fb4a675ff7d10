"""Pages of runs: self-contained HTML that any gateway can serve.

Revision: 0012
After: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_pages",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("html", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["report_runs.id"], name=op.f("fk_report_pages_run_id_report_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_report_pages")),
    )


def downgrade() -> None:
    op.drop_table("report_pages")
