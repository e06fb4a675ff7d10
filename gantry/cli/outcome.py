"""How a command ends: one line on stderr and code 1 for what was to be expected, 2 for wrong usage."""

import sys
from typing import NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2


def warn(message: str) -> None:
    """Say something in one line beside the result, and go on."""
    print(f"gantry: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str) -> NoReturn:
    """Say why not, in one line, and end the command."""
    warn(message)
    raise SystemExit(EXIT_FAILED)
