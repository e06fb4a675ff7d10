"""Errors of the runtime.

RuntimeProblem
├── StartupError          one line that says what is wrong and what to do; ends the process with code 1
│   └── SettingsError     a setting is unknown or has a wrong value
├── LostError             one line that says what a running service has lost; ends the process with code 3
└── AlreadyLockedError    another process holds the lock
"""


class RuntimeProblem(Exception):  # noqa: N818 - the root of a family, never raised itself.
    """Root of the family."""


class StartupError(RuntimeProblem):
    """The service can't start; the message is for the person who started it."""


class SettingsError(StartupError):
    """A setting is unknown or has a wrong value; the message names key, value and what is allowed."""


class LostError(RuntimeProblem):
    """A running service has lost something it can't go on without; the message is for the operator."""


class AlreadyLockedError(RuntimeProblem):
    """Another process holds the lock on `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another process")
        self.path = path


def os_reason(error: OSError) -> str:
    """Return what the operating system said, in words, and the file it was about as far as that is known."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{reason} ({error.filename})" if error.filename else reason


def add_path(error: OSError, path: str) -> None:
    """Add the path of its file to an error of a call on a descriptor, which names none; before `raise`."""
    if error.filename is None and error.errno is not None:
        error.filename = path
