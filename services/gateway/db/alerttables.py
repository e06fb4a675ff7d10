"""The tables of objectives, alerts and webhooks; migrations/versions create them.

| table | written by | holds |
|---|---|---|
| lag_objectives | the gateway | limits for the lag of a group; topic '' means all its topics |
| alert_states | the job lag_report, at its end | pairs of group and topic with an open alert, or about to change |
| alert_events | the same, in the same transaction | changes of alerts; `is_handed_out`: deliveries were created for it |
| webhooks | the gateway | receivers of alerts; the secret signs and is never returned again |
| webhook_deliveries | the gateway | messages to send, and their outcomes |

`next_attempt_at` of a delivery is also its lease: a sender that takes it moves it ahead, so that another sender takes
it over if the first one dies.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from services.gateway.db.models import MOMENT, NAME, Metadata

_METADATA: Final = Metadata.metadata

LAG_OBJECTIVES: Final = Table(
    "lag_objectives",
    _METADATA,
    Column("group_name", NAME, primary_key=True),
    Column("topic", NAME, primary_key=True, server_default=text("''::text")),
    Column("max_lag_seconds", Double),
    Column("max_lag_messages", BigInteger),
    Column("ignore", Boolean, server_default=text("false"), nullable=False),
    Column("ignore_until", MOMENT),
    Column("reason", Text),
    Column("version", BigInteger, nullable=False),
    Column("updated_at", MOMENT, server_default=func.now(), nullable=False),
    CheckConstraint("max_lag_seconds > 0", name="seconds_positive"),
    CheckConstraint("max_lag_messages >= 0", name="messages_counted"),
)

ALERT_STATES: Final = Table(
    "alert_states",
    _METADATA,
    Column("group_name", NAME, primary_key=True),
    Column("topic", NAME, primary_key=True),
    Column("alert_id", Uuid),
    Column("verdict", Text),
    Column("opened_at", MOMENT),
    Column("since", MOMENT),
    Column("pending", Text),
    Column("pending_since", MOMENT),
    Column("seen_at", MOMENT, nullable=False),
    Column("seen_verdict", Text, nullable=False),
    Column("lag_messages", BigInteger),
    Column("lag_seconds", Double),
    Column("run_id", Uuid, nullable=False),
)

ALERT_EVENTS: Final = Table(
    "alert_events",
    _METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", MOMENT, nullable=False),
    Column("alert_id", Uuid, nullable=False),
    Column("kind", Text, nullable=False),
    Column("group_name", NAME, nullable=False),
    Column("topic", NAME, nullable=False),
    Column("old_verdict", Text),
    Column("new_verdict", Text, nullable=False),
    Column("since", MOMENT, nullable=False),
    Column("lag_messages", BigInteger),
    Column("lag_seconds", Double),
    Column("cause", Text),
    Column("run_id", Uuid, nullable=False),
    Column("is_handed_out", Boolean, server_default=text("false"), nullable=False),
    CheckConstraint("kind IN ('opened', 'changed', 'resolved')", name="kind_known"),
    Index("ix_alert_events_group_name", "group_name", "id"),
    Index("ix_alert_events_at", "at"),
    Index("ix_alert_events_handed_out", "id", postgresql_where=text("NOT is_handed_out")),
)

WEBHOOKS: Final = Table(
    "webhooks",
    _METADATA,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    Column("url", Text, nullable=False),
    Column("groups", JSONB, nullable=False),
    Column("verdicts", JSONB, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("secret", Text, nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("updated_at", MOMENT, server_default=func.now(), nullable=False),
)

WEBHOOK_DELIVERIES: Final = Table(
    "webhook_deliveries",
    _METADATA,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    Column("webhook_id", Uuid, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event_id", BigInteger),
    Column("body", Text, nullable=False),
    Column("status", Text, server_default=text("'pending'::text"), nullable=False),
    Column("attempts", Integer, server_default=text("0"), nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("next_attempt_at", MOMENT, server_default=func.now(), nullable=False),
    Column("finished_at", MOMENT),
    Column("last_status", Integer),
    Column("last_error", Text),
    CheckConstraint("status IN ('pending', 'delivered', 'failed')", name="status_known"),
    Index(
        "ix_webhook_deliveries_due",
        "webhook_id",
        "next_attempt_at",
        postgresql_where=text("status = 'pending'"),
    ),
    Index("ix_webhook_deliveries_webhook_id", "webhook_id", "created_at", "id"),
    Index("ix_webhook_deliveries_created_at", "created_at"),
)
