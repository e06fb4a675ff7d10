"""The section `filter` of backlog profiles.

Revision: 0032
After: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

NAME = "ck_report_backlog_rows_section_known"


def upgrade() -> None:
    op.drop_constraint(op.f(NAME), "report_backlog_rows", type_="check")
    op.create_check_constraint(
        op.f(NAME), "report_backlog_rows", "section IN ('age', 'filter', 'key', 'queue', 'size', 'tag')"
    )


def downgrade() -> None:
    op.execute("DELETE FROM report_backlog_rows WHERE section = 'filter'")
    op.drop_constraint(op.f(NAME), "report_backlog_rows", type_="check")
    op.create_check_constraint(op.f(NAME), "report_backlog_rows", "section IN ('age', 'tag', 'key', 'size', 'queue')")
