"""Errors of the runtime.

RuntimeProblem
├── StartupError          one line that says what is wrong and what to do; ends the process with code 1
│   └── SettingsError     a setting is unknown or has a wrong value
└── AlreadyLockedError    another process holds the lock
"""


class RuntimeProblem(Exception):  # noqa: N818 - the root of a family, never raised itself.
    """Root of the family."""


class StartupError(RuntimeProblem):
    """The service can't start; the message is for the person who started it."""


class SettingsError(StartupError):
    """A setting is unknown or has a wrong value; the message names key, value and what is allowed."""


class AlreadyLockedError(RuntimeProblem):
    """Another process holds the lock on `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another process")
        self.path = path
