"""The JSON form of transactions."""

from typing import Any, Final

from services.gateway.db.transactions import COMMITTED, ROLLED_BACK, Transaction
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.transactions.transactions import Begun
from services.gateway.views.optional import moment_view

_DECISIONS: Final = {COMMITTED: "commit", ROLLED_BACK: "rollback"}


def transaction_view(row: Transaction) -> dict[str, Any]:
    """Return a transaction in the contract's form."""
    return {
        "transaction": row.id,
        "group": row.group_name,
        "topic": row.topic,
        "message_id": row.id,
        "state": row.state,
        "origin": row.origin,
        "broker": row.broker,
        "created_at": format_moment(row.created_at),
        "decided_at": moment_view(row.decided_at),
        "delivered_at": moment_view(row.delivered_at),
        "checks": row.checks,
        "next_check_at": moment_view(row.next_check_at),
        "error": row.error,
    }


def begun_view(begun: Begun) -> dict[str, Any]:
    """Return a transaction that was begun in the contract's form."""
    row = begun.transaction
    return {
        "transaction": row.id,
        "state": row.state,
        "outcome": begun.outcome,
        "message_id": row.id,
        "group": row.group_name,
        "topic": row.topic,
        "broker": row.broker,
        "created_at": format_moment(row.created_at),
        "next_check_at": moment_view(row.next_check_at),
    }


def decided_view(row: Transaction) -> dict[str, Any]:
    """Return a decided transaction in the contract's form."""
    return {"transaction": row.id, "state": row.state, "delivered": row.delivered_at is not None}


def checked_view(row: Transaction, *, is_asked: bool) -> dict[str, Any]:
    """Return a transaction whose producers were asked in the contract's form."""
    return {**decided_view(row), "asked": is_asked, "decision": _DECISIONS.get(row.state, "unknown")}
