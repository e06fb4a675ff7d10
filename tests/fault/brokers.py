"""Brokers for fault tests: small files, so that events that normally occur once per gigabyte occur all the time."""

import time
from collections.abc import Callable
from pathlib import Path

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.findings import Result, Severity
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.store.settings import FlushDiskType
from tests.support.brokerprocess import BrokerProcess

BROKER = "broker-a"
HAPPENED_WITHIN_S = 30.0

SMALL_FILES = {
    "mapped_file_size_commit_log": 256 << 10,
    "mapped_file_size_consume_queue": 20 * 250,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
}
IN_A_HURRY = {
    "flush_interval_consume_queue": 50,
    "flush_consume_queue_thorough_interval": 200,
    "flush_consumer_offset_interval": 200,
    "clean_resource_interval": 100,
}
# The fill level of the machine's own disk must not matter: the broker removes and rejects nothing because of it.
NEVER_FULL = {
    "disk_max_used_space_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
    "disk_space_warning_level_ratio": 100,
    "clean_file_forcibly_enable": False,
}
_AN_HOUR_MS = 3_600_000
# With these settings nothing reaches the disk in time: a harness that cuts the power must see the loss.
NEVER_FLUSH = {
    "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
    "flush_interval_commit_log": _AN_HOUR_MS,
    "flush_commit_log_thorough_interval": _AN_HOUR_MS,
    "flush_interval_consume_queue": _AN_HOUR_MS,
    "flush_consume_queue_thorough_interval": _AN_HOUR_MS,
}


def as_environment(**settings: object) -> dict[str, str]:
    """Return a broker's settings as environment variables."""
    return {f"GANTRY_BROKER_{name.upper()}": str(value) for name, value in settings.items()}


def broker(
    folder: Path,
    namesrv: str,
    *,
    store: Path | None = None,
    failpoints: str = "",
    **settings: object,
) -> BrokerProcess:
    """Return a broker that is not started; `folder` keeps its log and, unless told otherwise, its store."""
    environment = as_environment(**{**SMALL_FILES, **IN_A_HURRY, **NEVER_FULL, **settings})
    if failpoints:
        environment["GANTRY_FAILPOINTS"] = failpoints
    return BrokerProcess(folder, namesrv=namesrv, name=BROKER, store=store, environment=environment)


def assert_verifies(store: Path) -> None:
    """Assert that `gantry store verify` finds nothing wrong with a stopped store."""
    with StoreReader(OsFileSystem(), str(store)) as reader:
        report = verify(reader)
    problems = [str(finding) for finding in report.findings if finding.severity is Severity.PROBLEM]
    assert report.result is not Result.DAMAGED, "\n".join(problems[:10])


def wait_until(condition: Callable[[], bool], *, timeout_s: float = HAPPENED_WITHIN_S) -> None:
    """Wait until a condition holds in another process."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s without success"
        time.sleep(0.02)
