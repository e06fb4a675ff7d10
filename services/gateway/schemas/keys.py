"""API keys as requests and answers show them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.gateway.schemas.rights import Rights


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a new key."""

    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
    rights: Rights


def key_view(
    key_id: str, name: str, rights: Rights, *, created_at: str, revoked_at: str | None, last_used_at: str | None
) -> dict[str, Any]:
    """Return the view of a key, without the key itself."""
    return {
        "id": key_id,
        "name": name,
        "rights": rights,
        "created_at": created_at,
        "revoked_at": revoked_at,
        "last_used_at": last_used_at,
    }
