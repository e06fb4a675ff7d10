"""The tables of transactions and of producer groups with a URL; migrations/versions create them.

A row is written before its half message is sent. `due_at` is the time of the next delivery of a decision, and the lease
of the gateway that delivers it. A row of origin `remoting` mirrors a transaction of a RocketMQ client.
"""

from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Table, Text, func, text

from services.gateway.db.models import MOMENT, NAME, Metadata

_UNDELIVERED: Final = "due_at IS NOT NULL"

TRANSACTIONS: Final = Table(
    "transactions",
    Metadata.metadata,
    Column("id", NAME, primary_key=True),
    Column("origin", Text, server_default=text("'http'::text"), nullable=False),
    Column("group_name", NAME, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("state", Text, server_default=text("'open'::text"), nullable=False),
    Column("created_by", Text),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("decided_at", MOMENT),
    Column("delivered_at", MOMENT),
    Column("ended_at", MOMENT),
    Column("broker", NAME),
    Column("half_queue_offset", BigInteger),
    Column("half_physical_offset", BigInteger),
    Column("checks", Integer, server_default=text("0"), nullable=False),
    Column("next_check_at", MOMENT),
    Column("seen_at", MOMENT),
    Column("attempts", Integer, server_default=text("0"), nullable=False),
    Column("due_at", MOMENT),
    Column("error", Text),
    CheckConstraint("state IN ('open', 'committed', 'rolled_back', 'expired')", name="state_known"),
    CheckConstraint("origin IN ('http', 'remoting')", name="origin_known"),
    CheckConstraint("(ended_at IS NULL) = (state = 'open')", name="ended_has_moment"),
    CheckConstraint("due_at IS NULL OR decided_at IS NOT NULL", name="due_is_decided"),
    Index("ix_transactions_due", "due_at", postgresql_where=text(_UNDELIVERED)),
    Index("ix_transactions_open", "broker", "seen_at", postgresql_where=text("state = 'open'")),
    Index("ix_transactions_created_at", "created_at", "id"),
    Index("ix_transactions_ended_at", "ended_at"),
)

PRODUCER_GROUPS: Final = Table(
    "producer_groups",
    Metadata.metadata,
    Column("name", NAME, primary_key=True),
    Column("check_url", Text, nullable=False),
    Column("check_secret", Text, nullable=False),
    Column("updated_at", MOMENT, server_default=func.now(), nullable=False),
)
