"""Every benchmark still runs, and checks what it reads; its figures mean nothing here.

The benchmarks of reports are long: each starts stacks and several JVMs one after another, whatever its size.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from benchmarks import bench_scale
from tests.support.chromium import find_chromium
from tests.support.stack import CLASS_ARCHIVE

ROOT = Path(__file__).resolve().parents[2]


UNITS = {
    "messages/s",
    "s",
    "ms",
    "ms/s",
    "ms CPU",
    "µs CPU",
    "MiB",
    "KiB",
    "queues",
    "descriptors",
    "drains",
    "messages",
    "units/s",
    "%",
    "x",
    "rows",
    "tasks",
    "points",
}
MAY_BE_ZERO = {"MiB", "KiB", "ms/s", "ms CPU", "%", "tasks"}
SPARK = [pytest.mark.long, pytest.mark.skipif(which("java") is None, reason="no java: Spark was left out")]
BROWSER = pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")


# The Spark benchmark starts several JVMs, which takes minutes beside other tests.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "store",
        "filters",
        "remoting",
        "pop",
        "http",
        "stream",
        "listener",
        "receipts",
        "memory",
        "connections",
        "waiting",
        "duplicates",
        "groups",
        "samples",
        "scale",
        "timers",
        pytest.param("console", marks=BROWSER),
        pytest.param("spark", marks=SPARK),
        pytest.param("forecasts", marks=SPARK),
    ],
)
def test_a_benchmark_works(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--tiny", "--json"]
    # Each JVM that Spark starts is ready sooner with the class archive of other tests.
    told = {**os.environ, "XDG_CACHE_HOME": str(CLASS_ARCHIVE.parent)}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert rows
    assert all(row["unit"] in UNITS for row in rows)
    # Memory may shrink, an idle process or a short piece of work may use no measurable processor time, all of a few
    # forecasts may fail, and no task of a page may be long. Every other figure is above zero.
    assert all(row["figure"] > 0 or row["unit"] in MAY_BE_ZERO for row in rows)


@pytest.mark.parametrize(("store_bytes_max", "reason"), [(1, "the store would take"), (1 << 60, "MiB free")])
def test_a_size_that_does_not_fit_the_disk_is_reported_as_a_row(store_bytes_max: int, reason: str) -> None:
    (row,) = bench_scale.run(tiny=True, sizes=[4], store_bytes_max=store_bytes_max)
    assert reason in row.name
    assert row.reached is False


def test_make_takes_the_names_of_benchmarks_as_goals() -> None:
    done = subprocess.run(
        ["make", "-n", "bench", "scale", "store"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "python -m benchmarks scale store\n" in done.stdout
