"""Children's logs: each writes to its own file, which is kept short while it goes on writing.

Children hold their log open in append mode and know nothing of rotation. A file that has grown is copied and then
cut to nothing; the next line lands at its start. A pipe through the supervisor would lose nothing in between, but
would stop every service once a suspended supervisor (Ctrl-Z) no longer reads it.
"""

import os
import shutil
from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 16 << 20
LOGS_KEPT = 3


class ChildLog:
    """One child's log file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._start = self._size()

    def open(self) -> BinaryIO:
        """Open it for a child that starts now; `said_last` looks at what comes after this."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._start = self._size()
        return os.fdopen(descriptor, "ab", buffering=0)

    def rotate(self) -> bool:
        """Keep it short; return whether it was too long."""
        if self._size() <= LOG_BYTES_MAX:
            return False
        for number in range(LOGS_KEPT - 1, 0, -1):
            older = self._older(number)
            if older.exists():
                older.replace(self._older(number + 1))
        shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)
        self._start = 0
        return True

    def said_last(self) -> str:
        """Return the last line for people that the child wrote, or the last of any kind."""
        with self.path.open("rb") as file:
            file.seek(max(self._start, self._size() - 16_384))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        # Services log JSON objects; the reason why one can't start is a plain line.
        plain = [line for line in lines if not line.startswith("{")]
        return (plain or lines or ["it said nothing"])[-1].strip()

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
