"""Errors of the metadata store.

MetadataError
├── MetadataUnavailableError   Postgres is down, hangs, rejects or is not migrated: 503, retryable
├── VersionConflictError       If-Match names another version: 412
├── AlreadyExistsError          a name that must be new exists: 409 or 412
├── ConcurrentChangeError      the settings that a change started from were changed: start again
└── UnstorableError            Postgres cannot store a text or number, such as a zero character: 400
"""


class MetadataError(Exception):
    """Base class of these errors."""


class MetadataUnavailableError(MetadataError):
    """Postgres did not carry out the transaction; nothing was changed, unless the answer to the commit was lost.

    Attributes:
        reason: One line for people, without the URL's password.
        retry_after_ms: Time after which a retry makes sense.
    """

    def __init__(self, reason: str, *, retry_after_ms: int = 1_000) -> None:
        super().__init__(f"the metadata store is unavailable: {reason}")
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class VersionConflictError(MetadataError):
    """The row has another version than expected; `found` is its version now, None if it does not exist."""

    def __init__(self, kind: str, name: str, *, expected: int | None, found: int | None) -> None:
        wanted = "any version" if expected is None else f"version {expected}"
        there = "it does not exist" if found is None else f"it is at version {found}"
        super().__init__(f"{kind} {name}: {wanted} was expected, but {there}")
        self.kind = kind
        self.name = name
        self.expected = expected
        self.found = found


class AlreadyExistsError(MetadataError):
    """The row must not exist yet, but does."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} exists already")
        self.kind = kind
        self.name = name


class ConcurrentChangeError(MetadataError):
    """The settings that a change started from were changed by another writer."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} was changed meanwhile")


class UnstorableError(MetadataError):
    """Postgres cannot store a value; the message is the reason."""
