"""Transactions: their decisions, which any gateway delivers.

Revision: 0023
After: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name, moment = sa.Text(collation="C"), sa.DateTime(timezone=True)
    op.create_table(
        "transactions",
        sa.Column("id", name, nullable=False),
        sa.Column("origin", sa.Text(), server_default=sa.text("'http'"), nullable=False),
        sa.Column("group_name", name, nullable=False),
        sa.Column("topic", name, nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'open'"), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("created_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("decided_at", moment, nullable=True),
        sa.Column("delivered_at", moment, nullable=True),
        sa.Column("ended_at", moment, nullable=True),
        sa.Column("broker", name, nullable=True),
        sa.Column("half_queue_offset", sa.BigInteger(), nullable=True),
        sa.Column("half_physical_offset", sa.BigInteger(), nullable=True),
        sa.Column("checks", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_check_at", moment, nullable=True),
        sa.Column("seen_at", moment, nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", moment, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'committed', 'rolled_back', 'expired')", name=op.f("ck_transactions_state_known")
        ),
        sa.CheckConstraint("origin IN ('http', 'remoting')", name=op.f("ck_transactions_origin_known")),
        sa.CheckConstraint("(ended_at IS NULL) = (state = 'open')", name=op.f("ck_transactions_ended_has_moment")),
        sa.CheckConstraint("due_at IS NULL OR decided_at IS NOT NULL", name=op.f("ck_transactions_due_is_decided")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transactions")),
    )
    # Decisions that brokers don't have yet.
    op.create_index("ix_transactions_due", "transactions", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index(
        "ix_transactions_open", "transactions", ["broker", "seen_at"], postgresql_where=sa.text("state = 'open'")
    )
    op.create_index("ix_transactions_created_at", "transactions", ["created_at", "id"])
    op.create_index("ix_transactions_ended_at", "transactions", ["ended_at"])


def downgrade() -> None:
    op.drop_table("transactions")
