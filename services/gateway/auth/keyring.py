"""KeyRing: all valid API keys, in memory.

Keys are 256 random bits, so a plain SHA-256 protects them, and the time of a lookup by digest reveals nothing. A ring
that was never filled (no Postgres yet, no cache from an earlier run) cannot tell a wrong key from a right one, and
answers 503 instead of 401.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from gantry.runtime.rng import secret_bytes
from services.gateway.auth.principal import Principal, unauthenticated
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError
from services.gateway.schemas.rights import Rights

KEY_PREFIX: Final = "gk_"
KEY_BYTES: Final = 32


class KeyRecord(msgspec.Struct, frozen=True):
    """A key as it is stored: its digest, never the key itself."""

    id: str
    sha256: bytes
    name: str
    rights: Rights


class KeyRing:
    """The keys.

    Concurrency: the event loop's thread only; `authenticate` never waits.
    """

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Principal] = {}
        self._by_id: dict[str, KeyRecord] = {}
        self._used: set[str] = set()
        self._changed: dict[str, KeyRecord | None] = {}
        self.is_loaded = False

    def authenticate(self, header: bytes | str | None) -> Principal:
        """Return the principal of an `Authorization` header.

        Args:
            header: Value of the header, as received; None if it is missing.

        Raises:
            ProblemError: 401: the header is missing or not `Bearer KEY`, or the key is wrong or revoked. 503: the keys
                are not loaded yet.
        """
        if header is None:
            raise unauthenticated("Authorization: is missing; it must be `Bearer KEY`")
        if isinstance(header, str):
            header = header.encode("utf-8", "replace")
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise unauthenticated("Authorization: is not `Bearer KEY`")
        principal = self._by_digest.get(hashlib.sha256(key.strip()).digest())
        if principal is None:
            if not self.is_loaded:
                raise ProblemError(
                    METADATA_UNAVAILABLE,
                    "Authorization: cannot be checked, because the keys are not loaded from Postgres yet",
                )
            raise unauthenticated("Authorization: the key is wrong or was revoked")
        self._used.add(principal.key_id)
        return principal

    def key_id_of(self, header: bytes) -> str | None:
        """Return the id of the key in an `Authorization` header; None if the key is not valid."""
        principal = self._by_digest.get(hashlib.sha256(header.partition(b" ")[2].strip()).digest())
        return None if principal is None else principal.key_id

    def principal_of(self, key_id: str) -> Principal | None:
        """Return the current principal of a key id; None once the key is revoked."""
        record = self._by_id.get(key_id)
        return None if record is None else self._by_digest[record.sha256]

    def note_changes(self) -> None:
        """Start to record changes of keys: rows that are read from now on may reach `replace` after these changes."""
        self._changed.clear()

    def replace(self, records: Iterable[KeyRecord]) -> bool:
        """Replace all keys by these, with the changes since `note_changes`; return whether anything changed."""
        fresh = {record.id: record for record in records}
        for key_id, record in self._changed.items():
            if record is None:
                fresh.pop(key_id, None)
            else:
                fresh[key_id] = record
        changed = fresh != self._by_id or not self.is_loaded
        if changed:
            old = self._by_digest
            self._by_digest = {
                record.sha256: old[record.sha256]
                if self._by_id.get(record.id) == record
                else Principal(record.id, record.name, record.rights)
                for record in fresh.values()
            }
            self._by_id = fresh
            for sha256, principal in old.items():
                principal.is_revoked = sha256 not in self._by_digest
        self.is_loaded = True
        return changed

    def add(self, record: KeyRecord) -> None:
        """Add a key."""
        self._changed[record.id] = self._by_id[record.id] = record
        self._by_digest[record.sha256] = Principal(record.id, record.name, record.rights)

    def remove(self, key_id: str) -> None:
        """Remove a key; it is not valid from now on."""
        self._changed[key_id] = None
        record = self._by_id.pop(key_id, None)
        if record is not None:
            self._by_digest.pop(record.sha256).is_revoked = True

    def records(self) -> list[KeyRecord]:
        """Return all keys, by id."""
        return sorted(self._by_id.values(), key=lambda record: record.id)

    def take_used(self) -> set[str]:
        """Return the ids of the keys used since the last call."""
        used, self._used = self._used, set()
        return used


def make_key() -> str:
    """Return a new key of 256 random bits."""
    return KEY_PREFIX + urlsafe_b64encode(secret_bytes(KEY_BYTES)).rstrip(b"=").decode()


def make_key_id() -> str:
    """Return the id of a new key."""
    return "key-" + secret_bytes(8).hex()


def digest_of(key: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(key.encode()).digest()
