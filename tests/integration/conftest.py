"""Integration tests share one Postgres server and one stack; each module sees them empty."""

from tests.support.postgres import database, own_postgres, postgres, session_postgres
from tests.support.stack import session_stack, stack

__all__ = ["database", "own_postgres", "postgres", "session_postgres", "session_stack", "stack"]
