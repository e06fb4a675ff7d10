"""Errors of the runtime.

RuntimeFailure
├── StartupError          the service can't start: one line with the problem and its solution; exit code 1
│   └── SettingsError     a setting is unknown or has a wrong value
├── ResourceLostError             a running service can't continue: one line with the lost resource; exit code 3
└── AlreadyLockedError    another process holds the lock
"""

# The exit code for a ResourceLostError. It differs from those of a failed start (1) and wrong usage (2). So a supervisor
# can tell the cases apart, and may leave this one to a person.
EXIT_LOST = 3


class RuntimeFailure(Exception):  # noqa: N818 - the base class of a family, never raised itself.
    """Base class of the errors of the runtime."""


class StartupError(RuntimeFailure):
    """The service can't start. The message is for the person who started it."""


class SettingsError(StartupError):
    """A setting is unknown or has a wrong value. The message names the key, the value and the allowed values."""


class ResourceLostError(RuntimeFailure):
    """A running service has lost something that it needs to continue. The message is for the operator."""


class AlreadyLockedError(RuntimeFailure):
    """Another process holds the lock on `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another process")
        self.path = path


def describe_os_error(error: OSError) -> str:
    """Return the reason that the operating system gave, in words, with the file name if the error has one."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{reason} ({error.filename})" if error.filename else reason


def add_path(error: OSError, path: str) -> None:
    """Add a path to an error, if it has none. Errors of calls on a descriptor have no path. Call it before `raise`."""
    if error.filename is None and error.errno is not None:
        error.filename = path
