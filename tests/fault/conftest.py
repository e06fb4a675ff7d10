"""What every fault test shares: one seed a run, printed, and a name server."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.runtime.rng import Rng
from tests.support.brokerprocess import NamesrvProcess

SEED = int(os.environ.get("GANTRY_TEST_SEED") or time.time_ns() % 1_000_000_000)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how the run can be repeated."""
    terminalreporter.line(f"fault tests ran with seed {SEED}: make test-fault SEED={SEED}")


@pytest.fixture
def rng() -> Rng:
    """The run's seed, the same for a test alone and among others."""
    print(f"seed {SEED}: make test-fault SEED={SEED}")
    return Rng(SEED)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    """A name server."""
    with NamesrvProcess(tmp_path / "namesrv") as process:
        yield process
