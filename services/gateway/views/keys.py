"""The JSON form of API keys."""

from datetime import datetime
from typing import Any

import msgspec

from services.gateway.db.models import ApiKey
from services.gateway.schemas.rights import KeyLimits, Rights
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.keys import CreatedKey


def key_view(row: ApiKey) -> dict[str, Any]:
    """Return a key in the contract's form, without the secret."""
    return {
        "id": row.id,
        "name": row.name,
        "rights": msgspec.convert(row.rights, Rights),
        "limits": msgspec.convert(row.limits or {}, KeyLimits),
        "created_at": format_moment(row.created_at),
        "expires_at": _moment(row.expires_at),
        "rotated_at": _moment(row.rotated_at),
        "previous_valid_until": _moment(row.previous_valid_until),
        "revoked_at": _moment(row.revoked_at),
        "last_used_at": _moment(row.last_used_at),
    }


def created_key_view(created: CreatedKey) -> dict[str, Any]:
    """Return a new key, or one with a new secret, in the contract's form; only this answer ever contains the secret."""
    return {**key_view(created.row), "key": created.secret}


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else format_moment(moment)
