"""Logs of child processes: each child writes to a file of its own, which is rotated while the child runs.

A child keeps its log open in append mode and is not told of the rotation: a large file is copied and then truncated to
zero bytes, and the next line starts at offset 0. Lines written between copy and truncation are lost. A pipe through
the supervisor would lose no lines, but every service would block when the supervisor is suspended (Ctrl-Z) and no
longer reads the pipe.
"""

import os
import shutil
from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 16 << 20
OLD_LOGS_MAX = 3


class ChildLog:
    """The log file of one child."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._start = self._size()

    def open(self) -> BinaryIO:
        """Open the file for a child that starts now. `last_line` reads only lines written after this call."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._start = self._size()
        return os.fdopen(descriptor, "ab", buffering=0)

    def rotate(self) -> bool:
        """Rotate the file if it exceeds LOG_BYTES_MAX. Return whether it was rotated."""
        if self._size() <= LOG_BYTES_MAX:
            return False
        for number in range(OLD_LOGS_MAX - 1, 0, -1):
            older = self._older(number)
            if older.exists():
                older.replace(self._older(number + 1))
        shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)
        self._start = 0
        return True

    def last_line(self) -> str:
        """Return the last plain-text line that the child wrote, or the last line of any kind."""
        with self.path.open("rb") as file:
            file.seek(max(self._start, self._size() - 16_384))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        # Services log JSON objects. A service that can't start prints the reason as a plain line.
        plain = [line for line in lines if not line.startswith("{")]
        return (plain or lines or ["its log is empty"])[-1].strip()

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
