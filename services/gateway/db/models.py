"""The tables as SQLAlchemy classes; migrations/versions create them.

A topic or group has two sides. `config` is the desired state, and `version` counts its changes (the ETag); `observed`
is the state that each broker had when last seen. A reconciler compares the two and repairs the brokers, so no row here
is ever the broker's truth. A deleted one stays as DELETING until every broker has dropped it.

Audit rows hold the actor's key id without a foreign key, because the trail must outlive the rows it describes.
"""

import enum
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Fixed names let later migrations refer to constraints; the names that Postgres chooses differ between versions.
NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = dict[str, Any]

# Byte order is the same on every server, whatever its locale: cursors compare names.
NAME = Text(collation="C")
MOMENT = DateTime(timezone=True)


class Metadata(DeclarativeBase):
    """Base class of the tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: MOMENT, Json: JSONB, str: Text}  # noqa: RUF012 - SQLAlchemy's own protocol.


class ConfigState(enum.StrEnum):
    """The progress of a desired state."""

    PENDING = "pending"  # Some broker does not have it yet.
    APPLIED = "applied"  # Every broker that should have it had it when last asked.
    DELETING = "deleting"  # Deleted and hidden from users; some broker may still have it.


class ConfigOrigin(enum.StrEnum):
    """The creator of a row."""

    API = "api"
    BROKER = "broker"  # Found on a broker: a RocketMQ client or mqadmin created it there.


class Verdict(enum.StrEnum):
    """Whether the instances of a group agree on their subscription to one topic."""

    CONSISTENT = "consistent"
    # On the broker, the last heart-beat wins: some messages match no instance's filter and are not consumed.
    FILTERS_DIFFER = "filters_differ"
    MODELS_DIFFER = "models_differ"  # Some instances use CLUSTERING, others BROADCASTING.


class ConfigColumns:
    """The columns that topics and groups share."""

    name: Mapped[str] = mapped_column(NAME, primary_key=True)
    config: Mapped[Json]
    version: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    state_detail: Mapped[str | None]
    origin: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    observed: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    observed_at: Mapped[datetime | None]


class Topic(ConfigColumns, Metadata):
    """A topic: `config` in the API's terms, `observed` {broker name: its TopicConfig in the API's terms}."""

    __tablename__ = "topics"
    __table_args__ = (CheckConstraint("version >= 1", name="version_positive"),)


class Group(ConfigColumns, Metadata):
    """A consumer group, stored like a topic."""

    __tablename__ = "groups"
    __table_args__ = (CheckConstraint("version >= 1", name="version_positive"),)


class Subscription(Metadata):
    """One filter with which instances of a group subscribed to a topic, as seen in the brokers' consumer tables.

    `last_seen_at` stays after the instances have disconnected, and `active` is whether some are connected. `clients`
    names some of those that were seen last; `clients_count` counts all.
    """

    __tablename__ = "subscriptions"
    __table_args__ = (
        # The digest stands for the expression, because an index entry holds 2,700 bytes and an SQL92 expression may be
        # longer.
        UniqueConstraint(
            "group_name", "topic", "client_kind", "expression_type", "expression_sha256", name="uq_subscriptions_asked"
        ),
        Index("ix_subscriptions_topic", "topic"),
        CheckConstraint("octet_length(expression_sha256) = 32", name="expression_sha256_size"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    group_name: Mapped[str] = mapped_column(NAME)
    topic: Mapped[str] = mapped_column(NAME)
    client_kind: Mapped[str]
    message_model: Mapped[str]
    expression_type: Mapped[str]
    expression: Mapped[str]
    expression_sha256: Mapped[bytes] = mapped_column(LargeBinary)
    sub_version: Mapped[int] = mapped_column(BigInteger)
    clients: Mapped[list[str]] = mapped_column(JSONB)
    clients_count: Mapped[int] = mapped_column(Integer)
    active: Mapped[bool]
    verdict: Mapped[str] = mapped_column(String(32))
    first_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Metadata):
    """An API key; only its SHA-256 is stored, so the key cannot be read back."""

    __tablename__ = "api_keys"
    __table_args__ = (
        UniqueConstraint("sha256"),
        CheckConstraint("octet_length(sha256) = 32", name="sha256_size"),
    )

    id: Mapped[str] = mapped_column(NAME, primary_key=True)
    sha256: Mapped[bytes] = mapped_column(LargeBinary)
    name: Mapped[str]
    rights: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    limits: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    rotated_at: Mapped[datetime | None]
    previous_valid_until: Mapped[datetime | None]


class EarlierSecret(Metadata):
    """The SHA-256 of a secret that a key had before a rotation.

    Rows of expired secrets stay for a while, so that a file with the first key does not bring its secret back.
    """

    __tablename__ = "earlier_secrets"
    __table_args__ = (
        CheckConstraint("octet_length(sha256) = 32", name="sha256_size"),
        Index("ix_earlier_secrets_key_id", "key_id", "retired_at"),
    )

    sha256: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    key_id: Mapped[str] = mapped_column(NAME, ForeignKey("api_keys.id", ondelete="CASCADE"))
    retired_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]


class AuditEntry(Metadata):
    """One change: actor, time, old and new values; written in the transaction of the change."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_resource", "resource_kind", "resource_name", "id"),
        Index("ix_audit_actor", "actor", "id"),
        Index("ix_audit_at", "at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    actor: Mapped[str] = mapped_column(NAME)
    action: Mapped[str] = mapped_column(String(64))
    resource_kind: Mapped[str] = mapped_column(String(32))
    resource_name: Mapped[str] = mapped_column(NAME)
    before: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    after: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    request_id: Mapped[str | None]
