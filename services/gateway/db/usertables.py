"""The tables of users and their sessions; migrations/versions create them.

| table | holds |
|---|---|
| users | names, roles, and argon2id hashes of passwords |
| sessions | sessions of users: the SHA-256 of the cookie, never the cookie; `expires_at` moves ahead with its use |

A user that is deleted takes its sessions along.
"""

from typing import Final

from sqlalchemy import Boolean, CheckConstraint, Column, ForeignKey, Index, LargeBinary, Table, Text, func, text

from services.gateway.db.models import MOMENT, NAME, Metadata

_METADATA: Final = Metadata.metadata

USERS: Final = Table(
    "users",
    _METADATA,
    Column("name", NAME, primary_key=True),
    Column("role", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("disabled", Boolean, server_default=text("false"), nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("password_changed_at", MOMENT, server_default=func.now(), nullable=False),
    CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="role_known"),
)

SESSIONS: Final = Table(
    "sessions",
    _METADATA,
    Column("id", NAME, primary_key=True),
    Column("sha256", LargeBinary, nullable=False, unique=True),
    Column("user_name", NAME, ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("last_seen_at", MOMENT, server_default=func.now(), nullable=False),
    Column("expires_at", MOMENT, nullable=False),
    Column("address", Text),
    Column("user_agent", Text),
    Index("ix_sessions_user_name", "user_name", "created_at"),
    Index("ix_sessions_expires_at", "expires_at"),
)
