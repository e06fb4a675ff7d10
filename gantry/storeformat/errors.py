"""Errors of readers of a store.

StoreFileError
├── NotAStoreError      the folder is missing or holds no CommitLog
├── StoreInUseError     a broker runs on it
├── NewerFormatError    a later release of Gantry wrote it
└── BrokenFileError     one file can't be read; names it
"""


class StoreFileError(Exception):
    """Base class of these errors; the message is one line for the person who gave the command."""


class NotAStoreError(StoreFileError):
    """The folder is missing, or it holds no store."""


class StoreInUseError(StoreFileError):
    """A broker runs on the store, so its files change while they are read."""


class NewerFormatError(StoreFileError):
    """The store has a format that this release does not know. A broker must not start on the store."""


class BrokenFileError(StoreFileError):
    """A file of the store can't be read: it is not JSON, or it has the wrong shape or size."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
