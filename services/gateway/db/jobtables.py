"""The tables of jobs and of the dead letters that were sent again; migrations/versions create them.

`due_at` is also the lease of a running job: its gateway moves it ahead. `claims` counts the gateways that took the job,
so that a gateway whose lease has ended can't write any more.

A row of `dead_letter_redrives` is written before its letter is sent again, and gets `sent_at` after it.
"""

from typing import Final

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Index, Integer, Table, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import JSONB

from services.gateway.db.models import MOMENT, NAME, Metadata

_ACTIVE: Final = "state IN ('queued', 'running')"

JOBS: Final = Table(
    "jobs",
    Metadata.metadata,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    Column("kind", Text, nullable=False),
    Column("arguments", JSONB, nullable=False),
    Column("progress", JSONB(none_as_null=True)),
    Column("state", Text, server_default=text("'queued'::text"), nullable=False),
    Column("is_cancel_requested", Boolean, server_default=text("false"), nullable=False),
    Column("done", BigInteger, server_default=text("0"), nullable=False),
    Column("failed", BigInteger, server_default=text("0"), nullable=False),
    Column("total", BigInteger),
    Column("error", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", MOMENT, server_default=func.now(), nullable=False),
    Column("started_at", MOMENT),
    Column("ended_at", MOMENT),
    Column("claims", Integer, server_default=text("0"), nullable=False),
    Column("due_at", MOMENT, server_default=func.now(), nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state_known"),
    CheckConstraint(f"(ended_at IS NULL) = ({_ACTIVE})", name="ended_has_moment"),
    CheckConstraint("done >= 0 AND failed >= 0 AND total >= 0", name="counts_counted"),
    Index("ix_jobs_due", "due_at", postgresql_where=text(_ACTIVE)),
    Index("ix_jobs_created_at", "created_at", "id"),
)

DEAD_LETTER_REDRIVES: Final = Table(
    "dead_letter_redrives",
    Metadata.metadata,
    Column("group_name", NAME, primary_key=True),
    Column("stored_id", NAME, primary_key=True),
    Column("job_id", Uuid, nullable=False),
    Column("began_at", MOMENT, server_default=func.now(), nullable=False),
    Column("sent_at", MOMENT),
    Index("ix_dead_letter_redrives_began_at", "began_at"),
)
