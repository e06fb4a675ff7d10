"""Exports: answers without a limit, which are written to a file or to stdout as they come."""

import sys
from collections.abc import Iterable
from pathlib import Path

from gantry.cli.outcome import fail


def write_pieces(pieces: Iterable[bytes], output: Path | None) -> None:
    """Write the pieces of an answer to a file, or to stdout if `output` is None."""
    if output is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        return
    try:
        with output.open("wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        fail(f"--output {output}: {error.strerror}")
