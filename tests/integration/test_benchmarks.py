"""Every benchmark still runs, and checks what it reads; its figures mean nothing here."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).resolve().parents[2]


SPARK = pytest.param("spark", marks=pytest.mark.skipif(which("java") is None, reason="no java: Spark was left out"))


@pytest.mark.parametrize("name", ["store", "remoting", "http", "stream", "memory", SPARK])
def test_a_benchmark_works(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--tiny", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert rows
    assert all(row["unit"] in {"messages/s", "s", "ms", "MiB", "KiB"} for row in rows)
    # Memory may shrink; everything else that was measured is above zero.
    assert all(row["figure"] > 0 or row["unit"] in {"MiB", "KiB"} for row in rows)
