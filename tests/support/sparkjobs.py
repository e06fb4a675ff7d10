"""A report's job as a user runs it: a process of its own, which prints its rows."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark.java import JavaNotFoundError, find_java
from tests.support.stack import environment

JOB_TIMEOUT_S = 240.0
ROOT = Path(__file__).resolve().parents[2]


def skip_without_java() -> None:
    """Skip the test without Java 17, as for all tests that need Spark; the closing report counts it."""
    try:
        find_java(os.environ)
    except JavaNotFoundError:
        pytest.skip("no Java 17+ with all its modules: Spark's jobs were not tried")


def run_job(name: str, *arguments: str, extra: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Run `python -m spark.jobs.NAME … --json` and return the rows it prints."""
    command = [sys.executable, "-m", f"spark.jobs.{name}", *arguments, "--json"]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(extra), capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, f"{name} ended with {ended.returncode}: {ended.stdout[-500:]}\n{ended.stderr[-3000:]}"
    items: list[dict[str, Any]] = json.loads(ended.stdout)["items"]
    return items
