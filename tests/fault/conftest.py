"""Fixtures of all fault tests: the run's seed, a name server, and a disk whose power can be cut."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.runtime.rng import Rng
from tests.support.brokerprocess import NamesrvProcess
from tests.support.powercut import CuttableDisk, cuttable_disk

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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[CuttableDisk]:
    """A disk whose power can be cut. Modules with disks of other kinds have their own fixture."""
    with cuttable_disk(tmp_path) as disk:
        yield disk
