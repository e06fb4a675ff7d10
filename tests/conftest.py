"""Setup for all tests: how they are distributed over processes, the run's seed, and the closing report."""

import os
import time
from collections import Counter

import hypothesis
import pytest

# The files that take longest come first and then the folders, so that no process is left with a long one at the end.
# Those of Java's clients mostly wait, so they run beside those of Spark, which need both cores.
SLOWEST_FIRST = (
    "tests/integration/spark/test_cluster.py",
    "tests/conformance/test_foreign_broker.py",
    "tests/integration/spark/test_fedframes.py",
    "tests/conformance/test_foreign_clients.py",
    "tests/integration/spark/test_job_memory.py",
    "tests/integration/spark/test_messages_stream.py",
    "tests/integration/spark/test_lag_truth.py",
    "tests/integration/spark/test_scheduler.py",
    "tests/integration/spark/test_submit.py",
    "tests/integration/spark/test_stream_loss.py",
    "tests/integration/spark/test_reports_stack.py",
    "tests/integration/spark/test_flights_profile.py",
    "tests/integration/spark/",
    "tests/fault/",
    "tests/integration/",
    "tests/conformance/",
    "tests/unit/",
)

# One seed per run. It is set here because this file is read before the worker processes start and inherit it.
if not os.environ.get("GANTRY_TEST_SEED"):
    os.environ["GANTRY_TEST_SEED"] = str(time.time_ns() % 1_000_000_000)

# The duration of an example depends on the machine's other load, so it says little about the code.
hypothesis.settings.register_profile(
    "gantry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("gantry")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest modules first, skip long tests unless `-m` names them, and refuse two tests of one name."""
    items.sort(key=_turn)
    if "long" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: make test-long runs them"))
    twice = [node_id for node_id, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the same name, of which pytest-xdist runs one: {', '.join(twice)}")


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, folder in enumerate(SLOWEST_FIRST) if item.nodeid.startswith(folder)), 0)


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
