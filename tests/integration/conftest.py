"""Integration tests share one Postgres server; each sees it empty."""

from tests.support.postgres import database, own_postgres, postgres, session_postgres

__all__ = ["database", "own_postgres", "postgres", "session_postgres"]
