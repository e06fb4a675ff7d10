"""The command `gantry` as a process, as a user or a script types it."""

import json
import subprocess
import sys
from typing import Any

from tests.support.stack import Stack, environment


class Gantry:
    """The command for one stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def run(
        self, *words: str, typed: str = "", key: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. With `key`, it uses this key instead of the stack's own."""
        where = (
            ["--data", str(self._stack.directory)]
            if key is None
            else ["--url", self._stack.facts["http"], "--key", key]
        )
        return subprocess.run(
            [sys.executable, "-m", "gantry.cli", *words, *where],
            input=typed,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=timeout_s,
            check=False,
        )

    def json(self, *words: str, typed: str = "", timeout_s: float = 60) -> Any:
        """Run a command that succeeds, and return its JSON."""
        done = self.run(*words, "--json", typed=typed, timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def table(self, *words: str) -> list[list[str]]:
        """Run a command that succeeds, and return the words of each line that it prints for people."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    def refused(self, *words: str, key: str | None = None) -> str:
        """Run a command that fails as expected: with code 1, no output and one line on stderr. Return the line."""
        done = self.run(*words, key=key)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), (done.stdout, done.stderr)
        assert done.stderr.startswith("gantry: "), done.stderr
        return done.stderr
