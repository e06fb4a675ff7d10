"""Setup for all tests: how they are distributed over processes, the run's seed, and the closing report."""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import hypothesis
import pytest

# Two lanes of files, each with its longest files first, so that no process is left with a long one at the end. Files of
# Spark need whole cores; the others mostly wait for processes, sockets and time-outs. The lanes are merged, so that at
# any time some processes compute while others wait.
SPARK = "tests/integration/spark/"
LONGEST_OF_SPARK = (
    "test_cluster.py",
    "test_lag_truth.py",
    "test_messages_stream.py",
    "test_fedframes.py",
    "test_owners_stack.py",
    "test_reports_stack.py",
    "test_flights_profile.py",
    "test_scheduler.py",
    "transforms/test_forecasts.py",
    "test_job_memory.py",
    "test_submit.py",
    "test_stream_loss.py",
    "test_recording.py",
    "transforms/test_lag_numbers.py",
    "transforms/test_backlog_profile.py",
    "test_source_spark.py",
    "test_scheduler_ahead.py",
)
LONGEST_OF_OTHERS = (
    "tests/fault/test_abuse.py",
    "tests/conformance/test_foreign_broker.py",
    "tests/fault/test_bad_blocks.py",
    "tests/integration/test_up.py",
    "tests/integration/test_postgres_faults.py",
    "tests/browser/test_console_reports.py",
    "tests/browser/test_console_away.py",
    "tests/conformance/test_openapi.py",
    "tests/integration/test_cli_shrink.py",
    "tests/conformance/test_foreign_clients.py",
    "tests/integration/test_gateway_transactions.py",
    "tests/conformance/test_foreign_features.py",
    "tests/conformance/test_foreign_waiting.py",
    "tests/fault/test_store_bitflip.py",
    "tests/fault/test_kill_stack.py",
    "tests/fault/",
    "tests/integration/",
    "tests/browser/",
    "tests/conformance/",
)
# They neither wait nor take long: no process works alone at the end.
LAST = "tests/unit/"
# Files that `make test` leaves out, as it does tests with the mark `long`: they start Spark or a JVM, or repeat a load of
# faults for minutes (ADR 0027). `make test` keeps at least one file of each kind.
LONG = (
    SPARK,
    "tests/browser/test_console_layout.py",
    "tests/browser/test_console_story.py",
    "tests/conformance/test_foreign_",
    "tests/fault/test_abuse.py",
    "tests/fault/test_bad_blocks.py",
    "tests/fault/test_kill_stack.py",
    "tests/fault/test_pop_kill.py",
    "tests/fault/test_receipts_kill.py",
    "tests/fault/test_store_bitflip.py",
    "tests/fault/test_transactions_kill.py",
    "tests/fault/test_waiting_kill.py",
    "tests/integration/test_benchmarks.py",
)
NOT_LONG = (
    f"{SPARK}test_reports_stack.py",
    f"{SPARK}transforms/test_lag_numbers.py",
    f"{SPARK}transforms/test_lag_verdicts.py",
    "tests/conformance/test_foreign_clients.py",
)

# The import of the tests makes millions of objects that stay. `pytest_collection_finish` looks for garbage once.
gc.disable()

# One seed per run. It is set here because this file is read before the worker processes start and inherit it.
if not os.environ.get("GANTRY_TEST_SEED"):
    os.environ["GANTRY_TEST_SEED"] = str(time.time_ns() % 1_000_000_000)

# The duration of an example depends on the machine's other load, so it says little about the code.
hypothesis.settings.register_profile(
    "gantry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("gantry")


@pytest.hookimpl(tryfirst=True)  # Before pytest itself selects by marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for several processes, skip long tests in a run of all, and refuse two tests of one name."""
    turns = _turns(dict.fromkeys(_file(item) for item in items))
    items.sort(key=lambda item: turns[_file(item)])
    for item in items:
        if _file(item).startswith(LONG) and not _file(item).startswith(NOT_LONG):
            item.add_marker("long")
    # Tests whose file or folder somebody names run, long or not.
    if config.args == config.getini("testpaths") and "long" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: make test-long runs them"))
    twice = [node_id for node_id, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the same name, of which pytest-xdist runs one: {', '.join(twice)}")


def pytest_collection_finish() -> None:
    """Take the tests out of the garbage collector's sight: a collection would look at millions of objects each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _turns(files: Iterable[str]) -> dict[str, tuple[bool, float]]:
    """Return the sort key of each file: its place in its lane from 0 to 1, and after these the unit tests."""
    last, spark, others = [], [], []
    for file in files:
        (last if file.startswith(LAST) else spark if file.startswith(SPARK) else others).append(file)
    spark.sort(key=lambda file: _first_match(file.removeprefix(SPARK), LONGEST_OF_SPARK))
    others.sort(key=lambda file: _first_match(file, LONGEST_OF_OTHERS))
    places = {file: (False, place / len(lane)) for lane in (spark, others) for place, file in enumerate(lane)}
    return places | {file: (True, place / len(last)) for place, file in enumerate(last)}


def _first_match(file: str, beginnings: Sequence[str]) -> int:
    return next((index for index, beginning in enumerate(beginnings) if file.startswith(beginning)), len(beginnings))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report skipped tests in the last lines; a silent skip would look like a pass."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    terminalreporter.section("left out")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} tests: {reason}")
    if not reasons:
        terminalreporter.line("nothing")
    terminalreporter.line(f"seed of the fault tests: make test-fault SEED={os.environ['GANTRY_TEST_SEED']}")
