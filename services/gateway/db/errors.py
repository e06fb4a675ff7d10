"""Errors of the metadata store.

MetadataError
├── MetadataUnavailableError   Postgres is away, hanging, refusing or not migrated: 503, retryable
├── VersionConflictError       If-Match names another version: 412
├── AlreadyThereError          a name that must be new is taken: 409 or 412
├── ChangedMeanwhileError      settings that a change was made from are no longer there: make it again
└── UnstorableError            a text or number that Postgres can't keep, such as a zero character: 400
"""


class MetadataError(Exception):
    """Root of the family."""


class MetadataUnavailableError(MetadataError):
    """Postgres did not do it, and nothing was changed unless the answer to the commit itself was lost.

    Attributes:
        reason: One line for people; never holds the URL's password.
        retry_after_ms: When it makes sense to ask again.
    """

    def __init__(self, reason: str, *, retry_after_ms: int = 1_000) -> None:
        super().__init__(f"the metadata store is unavailable: {reason}")
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class VersionConflictError(MetadataError):
    """Somebody else changed it first; `found` is its version now, None where it does not exist."""

    def __init__(self, kind: str, name: str, *, expected: int | None, found: int | None) -> None:
        wanted = "any version" if expected is None else f"version {expected}"
        there = "it does not exist" if found is None else f"it is at version {found}"
        super().__init__(f"{kind} {name}: {wanted} was expected, but {there}")
        self.kind = kind
        self.name = name
        self.expected = expected
        self.found = found


class AlreadyThereError(MetadataError):
    """It must not exist yet, but does."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} exists already")
        self.kind = kind
        self.name = name


class ChangedMeanwhileError(MetadataError):
    """The settings that a change was made from are no longer those that are there."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} was changed meanwhile")


class UnstorableError(MetadataError):
    """Postgres can't keep a value; the message is its reason."""
