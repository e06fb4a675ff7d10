"""Alerts: one for each group and topic that is open or about to open, and their events.

Revision: 0019
After: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert_states",
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("alert_id", sa.Uuid(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pending", sa.Text(), nullable=True),
        sa.Column("pending_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_verdict", sa.Text(), nullable=False),
        sa.Column("lag_messages", sa.BigInteger(), nullable=True),
        sa.Column("lag_seconds", sa.Double(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("group_name", "topic", name=op.f("pk_alert_states")),
    )
    op.create_table(
        "alert_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("alert_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(collation="C"), nullable=False),
        sa.Column("topic", sa.Text(collation="C"), nullable=False),
        sa.Column("old_verdict", sa.Text(), nullable=True),
        sa.Column("new_verdict", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lag_messages", sa.BigInteger(), nullable=True),
        sa.Column("lag_seconds", sa.Double(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("is_handed_out", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("kind IN ('opened', 'changed', 'resolved')", name=op.f("ck_alert_events_kind_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_events")),
    )
    op.create_index("ix_alert_events_group_name", "alert_events", ["group_name", "id"])
    op.create_index("ix_alert_events_at", "alert_events", ["at"])
    # Events without deliveries yet: nearly always none.
    op.create_index(
        "ix_alert_events_handed_out", "alert_events", ["id"], postgresql_where=sa.text("NOT is_handed_out")
    )


def downgrade() -> None:
    op.drop_table("alert_events")
    op.drop_table("alert_states")
