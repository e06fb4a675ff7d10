"""How migrations run: one process at a time, each in a transaction of its own, never waiting long for a lock.

Old and new gateways serve while a migration runs. A statement that waits for a lock makes everybody behind it wait
too, so it gives up after LOCK_TIMEOUT_MS and the migration is tried again later.
"""

import os
import re
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from services.gateway.db import alerttables, reporttables  # noqa: F401 - put their tables into the metadata.
from services.gateway.db.driver import LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, connect_arguments, driver_url
from services.gateway.db.leadership import lock_key
from services.gateway.db.models import Metadata

# How long to wait while another process migrates, before saying so.
TURN_TIMEOUT_MS = 60_000
# The gateway makes and drops them, a day each; they are part of their table and no tables of their own.
PARTITIONS = re.compile(r"lag_samples_\d{8}")


def database_url() -> str:
    """Return where to run: what the program passed, `-x url=…`, or GANTRY_DATABASE_URL."""
    url = (
        context.config.attributes.get("url")
        or context.get_x_argument(as_dictionary=True).get("url")
        or os.environ.get("GANTRY_DATABASE_URL")
    )
    if not url:
        raise SystemExit("say where the database is: GANTRY_DATABASE_URL=postgresql://… or -x url=postgresql://…")
    return str(url)


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(
        dialect_name="postgresql",
        target_metadata=Metadata.metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        context.execute(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}")
        context.run_migrations()


def run_online() -> None:
    """Wait for our turn, then run what is missing."""
    engine = create_engine(
        driver_url(database_url()), poolclass=NullPool, connect_args=connect_arguments("gantry-migrate")
    )
    with engine.connect() as connection:
        take_turn(connection)
        context.configure(
            connection=connection,
            target_metadata=Metadata.metadata,
            transaction_per_migration=True,
            compare_type=True,
            compare_server_default=True,
            include_name=is_ours,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


def is_ours(name: str | None, kind: str, parents: Any) -> bool:
    """Say whether what lies in the database is compared with models.py; `make migration` and `alembic check` ask."""
    return kind != "table" or name is None or PARTITIONS.fullmatch(name) is None


def take_turn(connection: Connection) -> None:
    """Hold the advisory lock of migrations for as long as the connection lives."""
    connection.execute(text(f"SET LOCAL lock_timeout = {TURN_TIMEOUT_MS}"))
    connection.execute(text(f"SET LOCAL statement_timeout = {TURN_TIMEOUT_MS + 1_000}"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": lock_key("migrate")})
    connection.commit()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
