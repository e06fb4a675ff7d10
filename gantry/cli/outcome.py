"""The end of a command: one line on stderr with exit code 1 for an expected failure, 2 for wrong usage."""

import os
import sys
from typing import NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2


def warn(message: str) -> None:
    """Print a message to stderr in one line, and go on."""
    print(f"gantry: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str, *, exit_code: int = EXIT_FAILED) -> NoReturn:
    """Print the reason of a failure to stderr in one line, and end the command."""
    warn(message)
    raise SystemExit(exit_code)


def discard_output() -> None:
    """Discard the rest of stdout after its reader (such as `| head`) has closed the pipe.

    Otherwise the flush at exit would raise a second BrokenPipeError.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
