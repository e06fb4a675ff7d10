"""Errors of the store.

StoreError
├── StoreLockedError      (StartupError) another process runs on this store
├── StoreFormatError      (StartupError) a newer release wrote it, or its mark can't be understood
├── StoreUnusableError    (StartupError) the disk refuses what a start needs: read-only, full, no rights
├── CorruptStoreError     (StartupError) files that contradict each other; nothing was changed
├── StoreFullError        no file could be made for what is to be written
└── StoreWriteError       the operating system did not take what was to be written
"""

from gantry.runtime.errors import StartupError


class StoreError(Exception):
    """Root of the family."""


class StoreLockedError(StoreError, StartupError):
    """Another process holds the store's lock; start stops here, before anything was touched."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked: another broker runs on this store; stop it or choose another folder")
        self.path = path


class StoreFormatError(StoreError, StartupError):
    """The store's own mark says that this release must not touch it."""


class StoreUnusableError(StoreError, StartupError):
    """The disk refused something that a start can't do without; names path and reason."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"the store {path} can't be used: {error.strerror or error} ({error.filename or path})")
        self.path = path


class CorruptStoreError(StoreError, StartupError):
    """A file has a size that can't be right. Damage inside files is no reason not to start, see recovery.py."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreFullError(StoreError):
    """A file could not be made: the disk is full or the quota used up. Nothing was written."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{path} can't be created: {error.strerror or error}")
        self.path = path


class StoreWriteError(StoreError):
    """The CommitLog could not be written, and will not be until the next start; names the reason."""
