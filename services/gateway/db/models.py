"""The tables, as SQLAlchemy sees them; migrations/versions is how they come to be.

A topic or group has two sides. `config` is what people want, `version` counts its changes (the ETag); `observed`
is what each broker was last seen to hold. A reconciler compares the two and mends the brokers, so nothing here is
ever the broker's truth. A deleted one stays as DELETING until every broker has dropped it.

Audit rows hold the actor's key id without a foreign key: the trail must outlive what it tells about.
"""

import enum
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
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

# Every constraint has a name a later migration can say; Postgres' own choices differ between versions.
NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = dict[str, Any]

# Byte order, the same on every server whatever its locale: cursors compare names.
NAME = Text(collation="C")
MOMENT = DateTime(timezone=True)


class Metadata(DeclarativeBase):
    """Root of the tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: MOMENT, Json: JSONB, str: Text}  # noqa: RUF012 - SQLAlchemy's own protocol.


class ConfigState(enum.StrEnum):
    """How far what is wanted has got."""

    PENDING = "pending"  # Wanted, and some broker does not have it yet.
    APPLIED = "applied"  # Every broker meant had it when last asked.
    DELETING = "deleting"  # Wanted gone; hidden from users, some broker may still have it.


class ConfigOrigin(enum.StrEnum):
    """Who made it."""

    API = "api"
    BROKER = "broker"  # Found on a broker: a RocketMQ client or mqadmin made it there.


class Verdict(enum.StrEnum):
    """Whether the instances of a group agree on what they asked of one topic."""

    CONSISTENT = "consistent"
    FILTERS_DIFFER = "filters_differ"  # The last heart-beat wins on the broker: some messages go to nobody.
    MODELS_DIFFER = "models_differ"  # Some cluster, some broadcast.


class ConfigColumns:
    """What topics and groups have in common."""

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
    """A topic: `config` in the words of the API, `observed` {broker name: its TopicConfig as the API words it}."""

    __tablename__ = "topics"
    __table_args__ = (CheckConstraint("version >= 1", name="version_positive"),)


class Group(ConfigColumns, Metadata):
    """A consumer group, kept as a topic is."""

    __tablename__ = "groups"
    __table_args__ = (CheckConstraint("version >= 1", name="version_positive"),)


class Subscription(Metadata):
    """One filter that instances of a group asked of a topic, as seen in the brokers' consumer tables.

    `last_seen_at` stays after they have gone, and `active` says whether they have. `clients` names some of those
    who were seen last, `clients_count` counts all.
    """

    __tablename__ = "subscriptions"
    __table_args__ = (
        # The digest stands for the expression, since an index entry has room for 2,700 bytes and SQL92 has not.
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
    """An API key; only its SHA-256 is kept, so nobody can read it back."""

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


class AuditEntry(Metadata):
    """Who changed what, when, from what to what; written in the transaction of the change."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_resource", "resource_kind", "resource_name", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    actor: Mapped[str] = mapped_column(NAME)
    action: Mapped[str] = mapped_column(String(64))
    resource_kind: Mapped[str] = mapped_column(String(32))
    resource_name: Mapped[str] = mapped_column(NAME)
    before: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    after: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    request_id: Mapped[str | None]
