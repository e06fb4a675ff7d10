"""API keys as requests give them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from services.gateway.schemas.rights import KeyLimits, Rights

OVERLAP_DEFAULT = "24h"
OVERLAP_MS_MAX = 90 * 86_400_000

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a new key."""

    name: Name
    rights: Rights
    expires_at: str | None = None
    limits: KeyLimits = KeyLimits()


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that changes a key; absent fields stay as they are."""

    name: Name | UnsetType = UNSET
    expires_at: str | UnsetType | None = UNSET
    limits: KeyLimits | UnsetType = UNSET


class KeyRotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a new secret; the earlier ones stay valid for `overlap`, a duration."""

    overlap: str = OVERLAP_DEFAULT
