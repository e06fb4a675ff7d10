"""API keys as requests give them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from services.gateway.schemas.rights import Rights


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a new key."""

    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
    rights: Rights
