"""Fixtures of all fault tests: the run's seed and a name server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.runtime.rng import Rng
from tests.support.brokerprocess import NamesrvProcess

SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py


@pytest.fixture
def rng() -> Rng:
    """Return a generator with the run's seed; a test gets the same one alone and among others."""
    print(f"seed {SEED}: make test-fault SEED={SEED}")
    return Rng(SEED)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    """A name server."""
    with NamesrvProcess(tmp_path / "namesrv") as process:
        yield process
