"""The revision of a database, read without SQLAlchemy and Alembic.

Every start of a stack migrates its database, and nearly always there is nothing to do. To find that out with Alembic
takes three times as long as with the driver alone.
"""

import re
from pathlib import Path
from typing import Any

import psycopg

_HERE = Path(__file__).resolve().parent
_MIGRATION = re.compile(r"(\d{4})_\w+\.py")
"""File names of migrations begin with their revision."""
_LIMITS: dict[str, Any] = {
    "connect_timeout": 3,
    "options": "-c statement_timeout=5000",
    "application_name": "gantry-migrate",
}


def migrations_dir() -> Path:
    """Return the folder that holds `env.py` and `versions/`."""
    packed, in_repository = _HERE / "migrations", _HERE.parents[2] / "migrations"
    return packed if (packed / "env.py").exists() else in_repository


def newest() -> str:
    """Return the newest revision that this program knows."""
    found = map(_MIGRATION.fullmatch, (path.name for path in (migrations_dir() / "versions").iterdir()))
    return max(match[1] for match in found if match is not None)


def is_newest(url: str) -> bool:
    """Return whether a database is known to be at the newest revision. If anything fails, it is not known."""
    try:
        with psycopg.connect(url, **_LIMITS) as connection:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except psycopg.Error:
        return False
    return rows == [(newest(),)]
