"""Decisions of `gantry up` before it starts any process."""

from pathlib import Path
from typing import Any

import pytest

from gantry.cli.stack import up
from gantry.cli.stack.layout import Layout, StackOptions


def started(*, scheduler: bool) -> tuple[list[str], list[str]]:
    """Return the services that are started for reports, and the printed lines."""
    said: list[str] = []
    options = StackOptions(data=Path("/nowhere"), scheduler=scheduler)
    stack = up._Stack(options, Layout(options, exists=lambda path: False), {}, said.append)
    return [service.name for service in stack._scheduler()], said


def test_the_stack_has_a_scheduler_by_default() -> None:
    assert started(scheduler=True) == (["scheduler"], [])
    assert started(scheduler=False) == ([], [])


@pytest.mark.parametrize("missing", ["spark", "apscheduler", "pyspark", "psycopg"])
def test_the_stack_starts_without_reports_if_they_are_not_installed(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = up.find_spec
    monkeypatch.setattr(up, "find_spec", lambda name: None if name == missing else real(name))
    services, said = started(scheduler=True)
    assert services == []
    assert "pip install 'gantry-mq[server,spark]'" in said[0]


def test_the_scheduler_gets_the_database_through_the_environment() -> None:
    options = StackOptions(data=Path("/nowhere"), database_url="postgresql://u:secret@db/g")
    layout = Layout(options, exists=lambda path: False)
    stack: Any = up._Stack(options, layout, {"PATH": "/bin"}, print)
    spec = stack._spec(layout.scheduler())
    assert spec.environment == {"PATH": "/bin", "GANTRY_DATABASE_URL": "postgresql://u:secret@db/g"}
    assert "secret" not in " ".join(spec.command)
