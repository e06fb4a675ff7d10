"""The JSON form of API keys."""

from typing import Any

import msgspec

from services.gateway.db.models import ApiKey
from services.gateway.schemas.rights import Rights
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.keys import CreatedKey


def key_view(row: ApiKey) -> dict[str, Any]:
    """Return a key in the contract's form, without the secret."""
    return {
        "id": row.id,
        "name": row.name,
        "rights": msgspec.convert(row.rights, Rights),
        "created_at": format_moment(row.created_at),
        "revoked_at": None if row.revoked_at is None else format_moment(row.revoked_at),
        "last_used_at": None if row.last_used_at is None else format_moment(row.last_used_at),
    }


def created_key_view(created: CreatedKey) -> dict[str, Any]:
    """Return a new key in the contract's form; only this answer ever contains the secret."""
    return {**key_view(created.row), "key": created.secret}
