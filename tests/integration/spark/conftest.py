"""One Spark for all tests that need one: starting it takes longer than most of them."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.java import JavaNotFoundError, find_java
from spark.session import PANDAS_WARNING, SessionSettings, open_session
from tests.support.stack import CLASS_ARCHIVE

MASTER = "local[2]"
# Small frames and many plans: what counts is how soon the JVM does something at all.
SETTINGS = SessionSettings(driver_memory="640m", shuffle_partitions=2, is_brief=True, class_archive=str(CLASS_ARCHIVE))


def pytest_configure(config: pytest.Config) -> None:
    """A warning that says nothing of ours: what we use of pandas is tried here."""
    config.addinivalue_line("filterwarnings", f"ignore:{PANDAS_WARNING}:FutureWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share; skipped, and counted in the closing report, where there is no Java."""
    try:
        find_java(os.environ)
    except JavaNotFoundError:
        pytest.skip("no Java 17+ with all its modules: Spark's data source, transforms and jobs were not tried")
    session = open_session("tests", master=MASTER, settings=SETTINGS)
    yield session
    session.stop()
