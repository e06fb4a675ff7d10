"""The arguments of a job, and the values that it finds itself."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from gantry.model.alert import AlertSettings
from gantry.runtime.errors import SettingsError, StartupError
from spark.jobs.arguments import Arguments, Window, add_alert_arguments, make_parser, read_arguments

RUN = "00000000-0000-0000-0000-000000000005"


def read(*given: str, **environment: str) -> Arguments:
    return read_arguments(make_parser("lag_report", "Report.", add_arguments=add_alert_arguments), given, environment)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    content = {"http": "http://h:1", "api_key": "k", "namesrv": ["h:9876", "i:9876"], "postgres": "postgresql://db/g"}
    (tmp_path / "stack.json").write_text(json.dumps(content))
    return tmp_path


def test_defaults_mean_this_machine_without_history() -> None:
    assert read() == Arguments(
        namesrv=("127.0.0.1:9876",), output=".gantry/reports", master="local[*]", alerts=AlertSettings()
    )


def test_a_stack_file_supplies_every_argument(stack: Path) -> None:
    found = read("--data", str(stack))
    assert (found.namesrv, found.database) == (("h:9876", "i:9876"), "postgresql://db/g")
    assert found.output == f"{stack}/reports"
    assert read(GANTRY_DATA=str(stack)) == found


def test_arguments_override_the_stack_file(stack: Path) -> None:
    found = read("--data", str(stack), "--namesrv", "a:1;b:2", "--output", "/out", GANTRY_DATABASE_URL="postgresql://x")
    assert (found.namesrv, found.database, found.output) == (("a:1", "b:2"), "postgresql://x", "/out")
    # A stack that is not needed does not have to run.
    assert read("--data", "/nowhere", "--namesrv", "a:1", "--database", "postgresql://x").namesrv == ("a:1",)


def test_a_stopped_stack_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no stack runs in"):
        read("--data", str(tmp_path))


def test_alert_delays_are_given_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    found = read("--alert-raise-after-ms", "60000", "--alert-clear-after-ms", "0").alerts
    assert found == AlertSettings(timedelta(minutes=1), timedelta(0))
    for text, reason in (
        ("-1", "'-1' is below 0"),
        ("1m", "'1m' is not a whole number"),
        ("9" * 30, "is too long"),
    ):
        with pytest.raises(SystemExit, match="2"):
            read("--alert-raise-after-ms", text)
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-21T09:00:00", "'2026-11-21T09:00:00' has no time zone; UTC is written with a Z at the end"),
        ("yesterday", "'yesterday' is not an ISO-8601 time"),
        ("1969-12-31T23:59:59Z", "'1969-12-31T23:59:59Z' is before 1970"),
        ("0001-01-01T00:00+14:00", "is not in the years 1 to 9999 of UTC"),
    ],
)
def test_the_error_says_why_a_time_is_invalid(text: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read("--from", text, "--to", "2026-11-21T10:00:00Z")
    assert f"argument --from: {text!r}" in (error := capsys.readouterr().err)
    assert reason in error


def test_a_window_has_two_ends() -> None:
    found = read("--from", "2026-11-21T09:00:00Z", "--to", "2026-11-21T11:00:00+01:00")
    assert found.window == Window(datetime(2026, 11, 21, 9, tzinfo=UTC), datetime(2026, 11, 21, 10, tzinfo=UTC))


def test_groups_and_runs() -> None:
    assert read("--group", "a", "--group", "b").groups == ("a", "b")
    found = read("--run", RUN, "--attempt", "2", "--database", "postgresql://x")
    assert (found.run_id, found.attempt) == (UUID(RUN), 2)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    (tmp_path / "access").write_text("KEY:SECRET\n")
    found = read("--access-file", str(tmp_path / "access"), "--database", "postgresql://u:hidden@db/g")
    assert found.access == "KEY:SECRET"
    assert "SECRET" not in repr(found)
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not ACCESS_KEY"),
        (b"HIDDEN", "is not ACCESS_KEY"),
        (b"KEY:", "is not ACCESS_KEY"),
        (b"KEY:HIDDEN:TOKEN:MORE", "is not ACCESS_KEY"),
        (b"KEY:HIDDEN\nKEY2:HIDDEN", "is not ACCESS_KEY"),
        (b"# mine\nKEY:HIDDEN", "is not ACCESS_KEY"),
        (b"KEY:" + 20_000 * b"x", "is larger than 16384 bytes"),
        (None, "can't be read: No such file"),
    ],
)
def test_a_file_without_credentials_is_refused_and_not_shown(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "access"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        read("--access-file", str(file))
    assert str(caught.value).startswith(f"--access-file: {file}: ")
    assert reason in str(caught.value)
    assert "HIDDEN" not in str(caught.value)


def test_a_security_token_may_follow(tmp_path: Path) -> None:
    (tmp_path / "access").write_text(" KEY:SECRET:TOKEN=\r\n")
    assert read("--access-file", str(tmp_path / "access")).access == "KEY:SECRET:TOKEN="


@pytest.mark.parametrize(
    "given",
    [
        ("--no-such",),
        ("--from", "2026-11-21T09:00:00Z"),
        ("--from", "2026-11-21T09:00:00", "--to", "2026-11-21T10:00:00"),
        ("--from", "2026-11-21T09:00:00Z", "--to", "2026-11-21T09:00:00Z"),
        ("--run", "5"),
        ("--run", RUN),
        ("--attempt", "1"),
        ("--run", RUN, "--group", "a", "--database", "postgresql://x"),
        (
            "--run",
            RUN,
            "--from",
            "2026-11-21T09:00:00Z",
            "--to",
            "2026-11-21T10:00:00Z",
            "--database",
            "postgresql://x",
        ),
    ],
)
def test_invalid_arguments_are_usage_errors(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*given)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="GANTRY_NO_SUCH"):
        read(GANTRY_NO_SUCH="1")


def test_spark_submit_already_sets_the_master(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(PYSPARK_GATEWAY_PORT="4711").master is None
    assert read("--master", "yarn").master == "yarn"
    with pytest.raises(SystemExit, match="2"):
        read("--master", "yarn", PYSPARK_GATEWAY_PORT="4711")
    assert "--master: say it to spark-submit" in capsys.readouterr().err


def test_runs_to_remove_are_parsed() -> None:
    assert read("--remove", f"lag_report/{RUN}").removed == (("lag_report", UUID(RUN)),)
    with pytest.raises(SystemExit, match="2"):
        read("--remove", "lag_report")


def test_a_job_of_the_scheduler_does_not_load_the_client_of_the_rest_api() -> None:
    """Loading it takes an eighth of the time before the JVM starts."""
    code = "import sys, spark.jobs.worker, spark.jobs.lag_report; print({'gantry.http', 'httpx'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "set()\n"
