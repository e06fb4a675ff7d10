"""The JSON form of users and sessions."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from services.gateway.auth.principal import Principal
from services.gateway.auth.throttle import Wait
from services.gateway.db.users import Session, User
from services.gateway.schemas.times import format_moment


def user_view(user: User, waits: Iterable[Wait], now_ms: int) -> dict[str, Any]:
    """Return a user in the contract's form.

    Args:
        user: The user.
        waits: The waits before the next log-in of the user.
        now_ms: Wall time.
    """
    return {
        "user": user.name,
        "role": user.role,
        "disabled": user.disabled,
        "created_at": format_moment(user.created_at),
        "password_changed_at": format_moment(user.password_changed_at),
        "log_in_waits": [
            {
                "address": wait.address,
                "failures": wait.failures,
                "until": format_moment(datetime.fromtimestamp((now_ms + wait.wait_ms) / 1_000, UTC)),
            }
            for wait in waits
        ],
    }


def session_view(session: Session, own: Principal) -> dict[str, Any]:
    """Return a session of a list in the contract's form."""
    return {
        "session": session.id,
        "created_at": format_moment(session.created_at),
        "last_seen_at": format_moment(session.last_seen_at),
        "expires_at": format_moment(session.expires_at),
        "address": session.address,
        "user_agent": session.user_agent,
        "current": session.id == own.credential,
    }
