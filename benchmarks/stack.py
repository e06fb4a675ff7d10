"""Real processes to measure: services on port 0 in a folder that is removed afterwards."""

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
STOP_TIMEOUT_S = 30


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty folder on the repository's own disk (not in memory), removed at the end."""
    path = ROOT / ".cache" / "bench" / f"{name}-{os.getpid()}"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def process(
    folder: Path, name: str, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Run `python -m …` until the block ends; yield what its ready file says. A failure shows its log."""
    ready, log = folder / f"{name}.ready.json", folder / f"{name}.log"
    command = [sys.executable, "-m", *(argument.replace("READY", str(ready)) for argument in arguments)]
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=os.environ | (environment or {}))
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not become ready:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.02)
        yield json.loads(ready.read_text())
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def address_of(facts: dict[str, Any]) -> tuple[str, int]:
    """Return (host, port) of a ready file's address."""
    host, port = facts["address"].rsplit(":", 1)
    return host, int(port)


def anonymous_mib(pid: int) -> float:
    """Return a process's anonymous memory in MiB: what it can't give back to the page cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return kib / 1024
