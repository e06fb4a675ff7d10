"""Real processes to measure: services on port 0, in a folder that is removed at the end."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
BLOCK_BYTES = 512  # The unit of st_blocks on Linux, independent of the file system's block size.

# Settings with small files, which are created fast, for benchmarks that do not measure the store.
SMALL_FILES = {
    "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(16 << 20),
    "GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE": "6000",
    "GANTRY_BROKER_MAX_INDEX_NUM": "20000",
    "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "5000",
}


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty folder on the repository's disk, not in memory; remove it at the end."""
    path = ROOT / ".cache" / "bench" / f"{name}-{os.getpid()}"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Service:
    """A service in a separate process, which may be stopped, killed and started again.

    Attributes:
        facts: Content of the ready file of the latest start.
        start_s: Seconds from the creation of the process until it answered, for the latest start.
        stop_s: Seconds from the signal until the process had ended, for the latest stop.

    Args:
        folder: Folder for the ready file and the log of the process.
        name: Name of both files.
        arguments: Arguments of `python -m`; READY stands for the path of the ready file.
        environment: Variables added to the environment of this process.
    """

    def __init__(self, folder: Path, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._name = name
        self._ready, self._log = folder / f"{name}.ready.json", folder / f"{name}.log"
        self._command = [sys.executable, "-m", *(argument.replace("READY", str(self._ready)) for argument in arguments)]
        self._environment = os.environ | (environment or {})
        self._child: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}
        self.start_s = 0.0
        self.stop_s = 0.0

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._child is not None, "started first"
        return self._child.pid

    def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            RuntimeError: The process ended, or did not answer in time; the error contains its log.
        """
        self._ready.unlink(missing_ok=True)
        began = time.monotonic()
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=ROOT, env=self._environment)
        while not self._ready.exists():
            if self._child.poll() is not None or time.monotonic() > began + READY_TIMEOUT_S:
                log = self._log.read_text(errors="replace")
                raise RuntimeError(f"{self._name} did not become ready:\n{log[-3000:]}")
            time.sleep(0.02)
        self.start_s = time.monotonic() - began
        self.facts = json.loads(self._ready.read_text())

    def stop(self) -> bool:
        """Stop the process in order; return whether it ended in time and with code 0.

        If it does not end in time, kill it.
        """
        assert self._child is not None, "started first"
        began = time.monotonic()
        self._child.terminate()
        try:
            is_orderly = self._child.wait(STOP_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            is_orderly = False
        self.stop_s = time.monotonic() - began
        return is_orderly

    def kill(self) -> None:
        """Kill the process if it is running."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def broker_alone(folder: Path, environment: dict[str, str]) -> Service:
    """Return a broker without a name server, not started yet. Its store is `store` in the folder."""
    options = (
        "--name", "broker-a", "--cluster", "bench", "--listen", "127.0.0.1:0", "--store", str(folder / "store"),
        "--fast-port", "off", "--metrics-port", "off", "--ready-file", "READY",
    )  # fmt: skip
    return Service(folder, "broker", "services.broker", *options, environment=environment)


@contextlib.contextmanager
def process(
    folder: Path, name: str, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Run `python -m …` until the block ends; yield the content of its ready file. A failure to start shows its log."""
    service = Service(folder, name, *arguments, environment=environment)
    try:
        service.start()
        yield service.facts
    finally:
        service.stop()


def address_of(facts: dict[str, Any]) -> tuple[str, int]:
    """Return (host, port) of a ready file's address."""
    host, port = facts["address"].rsplit(":", 1)
    return host, int(port)


def anonymous_mib(pid: int) -> float:
    """Return a process's anonymous memory in MiB. Unlike page cache, the kernel can't free it."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return kib / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds. Raises OSError if there is no such process."""
    # The id of the process's clock, as clock_getcpuclockid(3) makes it on Linux. The figures in /proc are in steps of
    # 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def child_named(word: str) -> int:
    """Return the id of the only child process of this process with `word` in its command line."""
    children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    found = [pid for pid in children if word in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(found) == 1, f"processes with {word!r}: {found}"
    return found[0]


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def allocated_bytes(folder: Path) -> int:
    """Return the bytes of all blocks that a folder's files and folders use on the disk; 0 if there is no such folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            with contextlib.suppress(FileNotFoundError):  # A running process may remove a file meanwhile.
                total += Path(path, name).stat().st_blocks
    return total * BLOCK_BYTES
