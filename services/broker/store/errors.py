"""Errors of the store.

StoreError
├── StoreLockedError      (StartupError) another process runs on this store
├── StoreFormatError      (StartupError) a newer release wrote it, or its mark can't be understood
├── StoreUnusableError    (StartupError) the disk refuses what a start needs: read-only, full, no rights
├── UnprovenStoreError    (StartupError) after a crash, memory and disk can't be brought together
├── CorruptStoreError     (StartupError) files that contradict each other; nothing was changed
│   └── MisplacedError    (StartupError) something in the folder that is none of the store's files
├── StoreFullError        no file could be made or extended for what is to be written
├── FileNotReadyError     the file for what is to be written is still being made
├── StoreReadError        the disk can't read a file that tells where messages are
└── StoreWriteError       the operating system did not take what was to be written
"""

from errno import EEXIST, EISDIR, ENOTDIR

from gantry.runtime.errors import StartupError


class StoreError(Exception):
    """Root of the family."""


class StoreLockedError(StoreError, StartupError):
    """Another process holds the store's lock; start stops here, before anything was touched."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked: another broker runs on this store; stop it or choose another folder")
        self.path = path


class StoreFormatError(StoreError, StartupError):
    """The store's own mark says that this release must not touch it, or can't be understood."""


class StoreUnusableError(StoreError, StartupError):
    """The disk refused something that a start can't do without; names path and reason."""

    def __init__(self, path: str, error: OSError | StoreError) -> None:
        reason, where = str(error), path
        if isinstance(error, OSError):
            reason, where = error.strerror or reason, error.filename or path
        advice = "See that its disk works, has room and can be written by this user"
        if isinstance(error, OSError) and error.errno in (EISDIR, ENOTDIR, EEXIST):
            advice = "Something else lies at the place of a file or folder of the store: move it away"
        super().__init__(f"the store {path} can't be used: {reason} ({where}). {advice}, and start again")
        self.path = path


class UnprovenStoreError(StoreError, StartupError):
    """After a crash the disk does not take, or not give, what a file holds; nothing was changed."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"{path}: the last broker on this store did not stop in order, and the disk still refuses what it left "
            f"({error.strerror or error}); check the disk, give it room or replace it, and start again"
        )
        self.path = path


class CorruptStoreError(StoreError, StartupError):
    """A file has a size that can't be right. Damage inside files is no reason not to start, see recovery.py."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MisplacedError(CorruptStoreError):
    """Something lies in the store's folder that is none of its files; it is for a person to move it away."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            path, f"{reason}. Move it away and start again; what a queue lacks then is built from the CommitLog"
        )


class StoreFullError(StoreError):
    """A file could not be made or extended: no space, quota, inodes or descriptors are left. Nothing was written."""

    def __init__(self, path: str, error: OSError, *, action: str = "created") -> None:
        super().__init__(f"{path} can't be {action}: {error.strerror or error}")
        self.path = path


class FileNotReadyError(StoreError):
    """The next CommitLog file is not there yet, and nobody waits for it. Nothing was written; try again."""

    def __init__(self, path: str, reason: str = "is not made yet") -> None:
        super().__init__(f"the next CommitLog file {reason} ({path}); try again")
        self.path = path


class StoreReadError(StoreError):
    """A range of a ConsumeQueue or index file is unreadable, so that an answer would be wrong."""

    def __init__(self, path: str, at: int, size: int) -> None:
        super().__init__(f"{path} can't be read: {size} bytes at {at}")
        self.path = path


class StoreWriteError(StoreError):
    """The CommitLog could not be written, and will not be until the next start; names the reason."""
