"""The end of a command: one line on stderr with exit code 1 for an expected failure, 2 for wrong usage."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2
# A request may have a thousand items, and each may have a reason of its own.
_REASONS_MAX = 3


def warn(message: str) -> None:
    """Print a message to stderr in one line, and go on."""
    print(f"gantry: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str, *, exit_code: int = EXIT_FAILED) -> NoReturn:
    """Print the reason of a failure to stderr in one line, and end the command."""
    warn(message)
    raise SystemExit(exit_code)


def fail_items(what: str, items: Sequence[Mapping[str, Any]], successes: Sequence[str]) -> None:
    """End the command with a line on stderr if some items of an answer have failed.

    The line has the number of these items and their reasons. With `--json` it is the only text for people.

    Args:
        what: The claim about the failed items, such as "queues were not set".
        items: Items with an `outcome`, and a `problem` if they have failed.
        successes: Outcomes of the items that have not failed.
    """
    failed = [item for item in items if item["outcome"] not in successes]
    if not failed:
        return
    reasons = list(dict.fromkeys(_reason(item) for item in failed))
    shown = "; ".join(reasons[:_REASONS_MAX])
    more = len(reasons) - _REASONS_MAX
    fail(f"{len(failed)} of {len(items)} {what}: {shown}" + (f"; and {more} more reasons" if more > 0 else ""))


def _reason(item: Mapping[str, Any]) -> str:
    problem = item.get("problem", {})
    return str(problem.get("detail") or problem.get("title") or item["outcome"])


def discard_output() -> None:
    """Discard the rest of stdout after its reader (such as `| head`) has closed the pipe.

    Otherwise the flush at exit would raise a second BrokenPipeError.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
