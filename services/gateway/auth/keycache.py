"""The key cache: the keys' digests in a file of mode 0600, so that a restart without Postgres still knows them.

Format: JSON, `{"version": 1, "keys": [{"id", "sha256" (base64), "name", "rights"}]}`. The file is a copy of the keys in
Postgres; an unreadable file counts as a missing one.
"""

from typing import Final, Protocol

import msgspec

from gantry.runtime.privatefiles import find_private, write_private
from gantry.runtime.telemetry import logger
from services.gateway.auth.keyring import KeyRecord

log = logger("gateway.keycache")

VERSION: Final = 1


class KeyCache(Protocol):
    """Keeps keys between two runs."""

    def load(self) -> list[KeyRecord] | None:
        """Return the keys of the last run, or None if there are none."""
        ...

    def save(self, records: list[KeyRecord]) -> None:
        """Store these keys in place of the old ones. Never raises: the gateway also works without the cache."""
        ...


class _Content(msgspec.Struct):
    version: int
    keys: list[KeyRecord]


class FileKeyCache:
    """The cache in a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> list[KeyRecord] | None:
        """Return the keys in the file; None if it is missing, damaged or of another version."""
        try:
            data = find_private(self._path)
            if data is None:
                return None
            content = msgspec.json.decode(data, type=_Content)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning(
                "cannot read the key cache; keys are loaded from Postgres only", path=self._path, error=str(error)
            )
            return None
        if content.version != VERSION:
            log.warning("the key cache has another version and is ignored", path=self._path, version=content.version)
            return None
        return content.keys

    def save(self, records: list[KeyRecord]) -> None:
        """Replace the file."""
        try:
            write_private(self._path, msgspec.json.encode(_Content(VERSION, records)))
        except OSError as error:
            log.warning("cannot write the key cache", path=self._path, error=str(error))
