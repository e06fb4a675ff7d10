"""Runs migrations: in one process at a time, each in its own transaction, without long waits for a lock.

Old and new gateways serve requests while a migration runs. A statement that waits for a lock blocks all statements
behind it, so it gives up after LOCK_TIMEOUT_MS, and the migration is tried again later.
"""

import os
import re
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

# These put their tables into the metadata.
from services.gateway.db import alerttables, jobtables, reporttables, secrettables, transactiontables, usertables  # noqa: F401 - as above.
from services.gateway.db.driver import LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, connect_arguments, driver_url
from services.gateway.db.leadership import lock_key
from services.gateway.db.models import Metadata

# The maximum wait for another process that migrates; then the migration fails.
TURN_TIMEOUT_MS = 60_000
# The gateway creates and drops these partitions, one for each day. They belong to their table, so they are not compared.
PARTITIONS = re.compile(r"lag_samples_\d{8}")


def database_url() -> str:
    """Return the URL of the database: the program's argument, `-x url=…`, or GANTRY_DATABASE_URL."""
    url = (
        context.config.attributes.get("url")
        or context.get_x_argument(as_dictionary=True).get("url")
        or os.environ.get("GANTRY_DATABASE_URL")
    )
    if not url:
        raise SystemExit(
            "the database is not known: set GANTRY_DATABASE_URL=postgresql://… or pass -x url=postgresql://…"
        )
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
    """Wait for other processes that migrate, then run the missing migrations."""
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
    """Return whether something in the database is compared with models.py; `make migration` and `alembic check` ask."""
    return kind != "table" or name is None or PARTITIONS.fullmatch(name) is None


def take_turn(connection: Connection) -> None:
    """Take the advisory lock of migrations. The connection holds it until it closes."""
    connection.execute(text(f"SET LOCAL lock_timeout = {TURN_TIMEOUT_MS}"))
    connection.execute(text(f"SET LOCAL statement_timeout = {TURN_TIMEOUT_MS + 1_000}"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": lock_key("migrate")})
    connection.commit()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
