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

from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.rng import secret_bytes
from services.gateway.auth.principal import Principal, unauthenticated
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError
from services.gateway.schemas.rights import KeyLimits, Rights

KEY_PREFIX: Final = "gk_"
KEY_BYTES: Final = 32


class EarlierSecret(msgspec.Struct, frozen=True):
    """The digest of a secret that a key had before a rotation, valid until `expires_at_ms` (wall ms)."""

    sha256: bytes
    expires_at_ms: int


class KeyRecord(msgspec.Struct, frozen=True):
    """A key as it is stored: its digests, never the secrets themselves.

    Attributes:
        expires_at_ms: End of the key (wall ms); None if it has none.
        limits: Its limits; None if it has none of its own.
        earlier: Secrets from before the last rotations that are still valid.
    """

    id: str
    sha256: bytes
    name: str
    rights: Rights
    expires_at_ms: int | None = None
    limits: KeyLimits | None = None
    earlier: tuple[EarlierSecret, ...] = ()


class UnknownKeyError(ProblemError):
    """The key is not in the ring (401); `digest` is its SHA-256. It may have been made a moment ago by another gateway."""

    def __init__(self, digest: bytes) -> None:
        problem = unauthenticated("Authorization: the key is wrong, has expired or was revoked")
        super().__init__(problem.kind, problem.detail, headers=problem.headers)
        self.digest = digest


class KeyRing:
    """The keys.

    Concurrency: the event loop's thread only; `authenticate` never waits.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._by_digest: dict[bytes, Principal] = {}
        self._by_credential: dict[str, Principal] = {}
        self._by_id: dict[str, KeyRecord] = {}
        self._used: set[str] = set()
        self._changed: dict[str, KeyRecord | None] = {}
        self.is_loaded = False

    def authenticate(self, header: bytes | str | None) -> Principal:
        """Return the principal of an `Authorization` header.

        Args:
            header: Value of the header, as received; None if it is missing.

        Raises:
            UnknownKeyError: 401: the key is wrong, revoked or expired, or this gateway does not know it yet.
            ProblemError: 401: the header is missing or not `Bearer KEY`. 503: the keys are not loaded yet.
        """
        if header is None:
            raise unauthenticated("Authorization: is missing; it must be `Bearer KEY`")
        if isinstance(header, str):
            header = header.encode("utf-8", "replace")
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise unauthenticated("Authorization: is not `Bearer KEY`")
        digest = hashlib.sha256(key.strip()).digest()
        principal = self._by_digest.get(digest)
        if principal is None:
            if not self.is_loaded:
                raise ProblemError(
                    METADATA_UNAVAILABLE,
                    "Authorization: cannot be checked, because the keys are not loaded from Postgres yet",
                )
            raise UnknownKeyError(digest)
        if self._has_expired(principal):
            raise UnknownKeyError(digest)
        self._used.add(principal.key_id)
        return principal

    def key_id_of(self, header: bytes) -> str | None:
        """Return the id of the key in an `Authorization` header; None if the key is not valid."""
        principal = self._by_digest.get(hashlib.sha256(header.partition(b" ")[2].strip()).digest())
        return None if principal is None else principal.key_id

    def principal_of(self, credential: str) -> Principal | None:
        """Return the current principal of a credential or a key's id; None once it is revoked or has expired."""
        principal = self._by_credential.get(credential)
        if principal is None:
            record = self._by_id.get(credential)
            principal = None if record is None else self._by_digest[record.sha256]
        return None if principal is None or self._has_expired(principal) else principal

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
        for key_id in [key_id for key_id, record in self._by_id.items() if fresh.get(key_id) != record]:
            self._set(key_id, fresh.get(key_id))
        for key_id, record in fresh.items():
            if key_id not in self._by_id:
                self._set(key_id, record)
        self.is_loaded = True
        return changed

    def add(self, record: KeyRecord) -> None:
        """Add a key, or put it in the place of the one with the same id."""
        self._changed[record.id] = record
        self._set(record.id, record)

    def remove(self, key_id: str) -> None:
        """Remove a key; it is not valid from now on."""
        self._changed[key_id] = None
        self._set(key_id, None)

    def end_expired(self) -> None:
        """Mark the principals of keys and secrets that have expired, so that what they have open ends."""
        for principal in self._by_digest.values():
            if self._has_expired(principal):
                principal.is_revoked = True

    def records(self) -> list[KeyRecord]:
        """Return all keys, by id."""
        return sorted(self._by_id.values(), key=lambda record: record.id)

    def take_used(self) -> set[str]:
        """Return the ids of the keys used since the last call."""
        used, self._used = self._used, set()
        return used

    def _has_expired(self, principal: Principal) -> bool:
        return principal.expires_at_ms is not None and self._clock.now_ms() >= principal.expires_at_ms

    def _set(self, key_id: str, record: KeyRecord | None) -> None:
        """Put a record in the place of the present one. Principals of secrets that it does not have are revoked."""
        before = self._by_id.pop(key_id, None)
        old: dict[bytes, Principal] = {}
        if before is not None:
            for sha256, _ in _secrets_of(before):
                principal = old[sha256] = self._by_digest.pop(sha256)
                del self._by_credential[principal.credential]
        if record is not None:
            self._by_id[key_id] = record
            for sha256, expires_at_ms in _secrets_of(record):
                old.pop(sha256, None)
                principal = Principal(
                    key_id,
                    record.name,
                    record.rights,
                    credential=f"{key_id}.{sha256[:8].hex()}",
                    expires_at_ms=expires_at_ms,
                    limits=record.limits,
                )
                self._by_digest[sha256] = self._by_credential[principal.credential] = principal
        for principal in old.values():
            principal.is_revoked = True


def _secrets_of(record: KeyRecord) -> list[tuple[bytes, int | None]]:
    """Return the digests of a key with their ends."""
    end_ms = record.expires_at_ms
    earlier = [
        (each.sha256, each.expires_at_ms if end_ms is None else min(end_ms, each.expires_at_ms))
        for each in record.earlier
    ]
    return [(record.sha256, end_ms), *earlier]


def make_key() -> str:
    """Return a new key of 256 random bits."""
    return KEY_PREFIX + urlsafe_b64encode(secret_bytes(KEY_BYTES)).rstrip(b"=").decode()


def make_key_id() -> str:
    """Return the id of a new key."""
    return "key-" + secret_bytes(8).hex()


def digest_of(key: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(key.encode()).digest()
