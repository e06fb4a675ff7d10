"""Errors of the store.

StoreError
├── StoreLockedError      (StartupError) another process runs on this store
├── StoreFormatError      (StartupError) a newer release wrote it, or its manifest can't be parsed
├── StoreUnusableError    (StartupError) the disk fails where a start needs it: read-only, full, no rights
├── UnsyncedStoreError    (StartupError) after a crash, memory and disk can't be made to agree
├── CorruptStoreError     (StartupError) files contradict each other; nothing was changed
│   └── MisplacedError    (StartupError) the folder holds something that is not a file of the store
├── StoreFullError        a file could not be created or extended before a write
├── FileNotReadyError     the file for the next write is still being created
├── StoreReadError        the disk can't read a file that says where messages are
└── StoreWriteError       the operating system rejected a write
"""

from errno import EEXIST, EISDIR, ENOTDIR

from gantry.runtime.errors import StartupError


class StoreError(Exception):
    """Base class of these errors."""


class StoreLockedError(StoreError, StartupError):
    """Another process holds the store's lock; the start ends here, before anything is changed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked: another broker runs on this store; stop it or choose another folder")
        self.path = path


class StoreFormatError(StoreError, StartupError):
    """The store's own manifest says that this release must not use the store, or the manifest can't be parsed."""


class StoreUnusableError(StoreError, StartupError):
    """The disk failed at something that a start needs; the message names path and reason."""

    def __init__(self, path: str, error: OSError | StoreError) -> None:
        reason, where = str(error), path
        if isinstance(error, OSError):
            reason, where = error.strerror or reason, error.filename or path
        advice = "See that its disk works, has room and can be written by this user"
        if isinstance(error, OSError) and error.errno in (EISDIR, ENOTDIR, EEXIST):
            advice = "Something else lies at the place of a file or folder of the store: move it away"
        super().__init__(f"the store {path} can't be used: {reason} ({where}). {advice}, and start again")
        self.path = path


class UnsyncedStoreError(StoreError, StartupError):
    """After a crash the disk can't write, or can't read, the content of a file; nothing was changed."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"{path}: the last broker on this store did not stop in order, and the disk still refuses what it left "
            f"({error.strerror or error}); check the disk, give it room or replace it, and start again"
        )
        self.path = path


class CorruptStoreError(StoreError, StartupError):
    """A file has an impossible size. Damage inside files does not prevent a start (recovery.py)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MisplacedError(CorruptStoreError):
    """The store's folder holds something that is not one of its files; a person must move it away."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            path, f"{reason}. Move it away and start again; what a queue lacks then is built from the CommitLog"
        )


class StoreFullError(StoreError):
    """A file could not be created or extended: no space, quota, inodes or descriptors. Nothing was written."""

    def __init__(self, path: str, error: OSError, *, action: str = "created") -> None:
        super().__init__(f"{path} can't be {action}: {error.strerror or error}")
        self.path = path


class FileNotReadyError(StoreError):
    """The next CommitLog file does not exist yet; the store does not wait for it. Nothing was written; try again."""

    def __init__(self, path: str, reason: str = "is not made yet") -> None:
        super().__init__(f"the next CommitLog file {reason} ({path}); try again")
        self.path = path


class StoreReadError(StoreError):
    """A range of a ConsumeQueue or index file is unreadable, so an answer would be wrong."""

    def __init__(self, path: str, at: int, size: int) -> None:
        super().__init__(f"{path} can't be read: {size} bytes at {at}")
        self.path = path


class StoreWriteError(StoreError):
    """The CommitLog could not be written. It takes no writes until the next start; the message names the reason."""
