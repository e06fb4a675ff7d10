"""KeyRing: all API keys that open something now, in memory.

Keys are 256 random bits, so a plain SHA-256 keeps them safe, and a look-up by digest tells nothing by its timing. A
ring that was never filled (no Postgres yet, no cache from an earlier run) can't tell a wrong key from a right one, and
says so with 503 instead of 401.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from gantry.runtime.rng import secret_bytes
from services.gateway.auth.principal import Principal, refused
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError
from services.gateway.schemas.rights import Rights

KEY_PREFIX: Final = "gk_"
KEY_BYTES: Final = 32


class KeyRecord(msgspec.Struct, frozen=True):
    """A key as it is kept: its digest, never itself."""

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
        """Return who sent an `Authorization` header.

        Args:
            header: Its value, as it came; None where there was none.

        Raises:
            ProblemError: 401: there is none, it is not `Bearer KEY`, or the key is wrong or revoked. 503: the keys
                are not known yet.
        """
        if header is None:
            raise refused("Authorization: is missing; it must be `Bearer KEY`")
        if isinstance(header, str):
            header = header.encode("utf-8", "replace")
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise refused("Authorization: is not `Bearer KEY`")
        principal = self._by_digest.get(hashlib.sha256(key.strip()).digest())
        if principal is None:
            if not self.is_loaded:
                raise ProblemError(
                    METADATA_UNAVAILABLE, "Authorization: can't be checked, as Postgres has not given the keys yet"
                )
            raise refused("Authorization: the key is wrong or was revoked")
        self._used.add(principal.key_id)
        return principal

    def key_id_of(self, header: bytes) -> str | None:
        """Return the id of the key in an `Authorization` header; None where it opens nothing."""
        principal = self._by_digest.get(hashlib.sha256(header.partition(b" ")[2].strip()).digest())
        return None if principal is None else principal.key_id

    def principal_of(self, key_id: str) -> Principal | None:
        """Return what a key's id opens now; None once it is revoked."""
        record = self._by_id.get(key_id)
        return None if record is None else self._by_digest[record.sha256]

    def note_changes(self) -> None:
        """Remember which keys are added and removed from now on: what is read now may reach `replace` after them."""
        self._changed.clear()

    def replace(self, records: Iterable[KeyRecord]) -> bool:
        """Take these keys, with the changes since `note_changes`, and no others; say whether anything changed."""
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
        """Take one more key."""
        self._changed[record.id] = self._by_id[record.id] = record
        self._by_digest[record.sha256] = Principal(record.id, record.name, record.rights)

    def remove(self, key_id: str) -> None:
        """Forget a key; it opens nothing from now on."""
        self._changed[key_id] = None
        record = self._by_id.pop(key_id, None)
        if record is not None:
            self._by_digest.pop(record.sha256).is_revoked = True

    def records(self) -> list[KeyRecord]:
        """Return all keys, by id."""
        return sorted(self._by_id.values(), key=lambda record: record.id)

    def take_used(self) -> set[str]:
        """Return the ids of keys used since the last call."""
        used, self._used = self._used, set()
        return used


def make_key() -> str:
    """Return a new key of 256 random bits."""
    return KEY_PREFIX + urlsafe_b64encode(secret_bytes(KEY_BYTES)).rstrip(b"=").decode()


def make_key_id() -> str:
    """Return a new key's id."""
    return "key-" + secret_bytes(8).hex()


def digest_of(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode()).digest()
