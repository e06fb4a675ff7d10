"""One service as a real process: started on port 0, ready once its ready file exists, stopped by SIGTERM."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0


class ServiceProcess:
    """`python -m services.NAME` with arguments."""

    def __init__(
        self, service: str, directory: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._command = [sys.executable, "-m", f"services.{service}", *arguments]
        self._ready_file = directory / f"{service}.ready.json"
        self._output = directory / f"{service}.log"
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def add_arguments(self, *arguments: str) -> None:
        """Add arguments for later starts; later arguments override earlier ones of the same name."""
        self._command = [*self._command, *arguments]

    def limit_descriptors(self, count: int) -> None:
        """Limit the number of open files for later starts."""
        self._command = ["prlimit", f"--nofile={count}:{count}", *self._command]

    @property
    def address(self) -> str:
        """The address that the service listens on."""
        return str(self.facts["address"])

    @property
    def process_id(self) -> int:
        """The process id while the service runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """The log so far."""
        return self._output.read_text() if self._output.exists() else ""

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        self.launch()
        code = self.wait_until_ready()
        assert code is None, f"it ended with {code}: {self.log}"

    def wait_until_ready(self) -> int | None:
        """Wait until the service is ready; return its exit code if it ends instead."""
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._ready_file.exists():
            if self._process.poll() is not None:
                return self._process.returncode
            assert time.monotonic() < deadline, f"not ready in {READY_TIMEOUT_S} s: {self.log}"
            time.sleep(0.01)
        self.facts = json.loads(self._ready_file.read_text())
        return None

    def launch(self) -> None:
        """Start the service without waiting."""
        self._ready_file.unlink(missing_ok=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command, "--ready-file", str(self._ready_file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**plain, **self._environment},
            )

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill the service if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT_S)
