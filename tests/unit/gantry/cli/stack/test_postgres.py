"""The embedded Postgres' folders and sockets, without starting one."""

import os
from pathlib import Path

import pytest

from gantry.cli.stack.postgres import SOCKET_PATH_BYTES_MAX, EmbeddedPostgres, ServerUser, cause_in, socket_folder

LONG = Path("/") / ("long" * 20) / ("path" * 20)


def longest(folder: Path) -> int:
    return len(os.fsencode(folder / ".s.PGSQL.5432"))


def test_the_socket_lies_in_the_data_folder() -> None:
    assert socket_folder(Path("/var/lib/gantry"), None) == Path("/var/lib/gantry/run")


def test_a_long_path_gets_a_short_socket_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(LONG))
    one, two = (socket_folder(LONG / name, None) for name in ("a", "b"))
    assert one != two
    assert one == socket_folder(LONG / "a", None)
    assert longest(one) <= SOCKET_PATH_BYTES_MAX


@pytest.mark.parametrize("name", ["a,b", "my stack", "100%", "q?x=1", "é"])
def test_characters_with_a_special_meaning_are_kept_out_of_the_socket_path(name: str) -> None:
    folder = socket_folder(Path("/srv") / name, ServerUser("postgres", 101, 101))
    assert folder.parent == Path("/tmp")


def test_roots_runtime_folder_is_closed_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run")
    assert socket_folder(LONG, None).parent == Path("/run")
    assert socket_folder(LONG, ServerUser("postgres", 101, 101)).parent == Path("/tmp")


def test_the_server_listens_on_no_port_and_has_safe_settings() -> None:
    postgres = EmbeddedPostgres(Path("/d/postgres"), Path("/d/run"), Path("/bin"), None)
    assert "listen_addresses=" in postgres.command
    assert "fsync=on" in postgres.command
    assert "unix_socket_permissions=0700" in postgres.command
    assert postgres.url == "postgresql://gantry@/gantry?host=/d/run"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            (
                'creating subdirectories ... initdb: error: could not create directory "/d/base": No space left on device\n'
                'initdb: removing contents of data directory "/d"\n'
            ),
            'creating subdirectories ... initdb: error: could not create directory "/d/base": No space left on device',
        ),
        ("one\ntwo\n", "two"),
        ("", "its output is empty"),
    ],
)
def test_the_cause_is_not_the_last_line(output: str, cause: str) -> None:
    assert cause_in(output) == cause
