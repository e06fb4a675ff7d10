"""What every test shares: the closing report of what was left out and why."""

import hypothesis
import pytest

# How long an example takes says more about the machine's other guests than about us.
hypothesis.settings.register_profile(
    "gantry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("gantry")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in the last lines what was left out; a silent skip would look like a pass."""
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
