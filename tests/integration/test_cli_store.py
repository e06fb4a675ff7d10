"""`gantry store` on real files: its output, its exit codes, and the obstacles that it reports."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gantry.cli.store import app, iso_time
from gantry.model.compression import Compression, compress
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.manifest import StoreManifest
from tests.support.storebuilder import StoreBuilder

MAIN = "from gantry.cli.main import main; main()"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def store() -> StoreBuilder:
    built = StoreBuilder()
    built.manifest = StoreManifest(record_checksum_from=0)
    built.add("Orders", 3, b"plain", properties={"UNIQ_KEY": "U0", "TAGS": "A", "KEYS": "k1 k2"})
    zipped = compress(b"zipped" * 50, Compression.ZSTD)
    built.add("Orders", 3, zipped, sys_flag=Compression.ZSTD.sys_flag, properties={"UNIQ_KEY": "U1"})
    built.add("Other", 0, b"\xff\x00", properties={"x": "\x1b[31m\u8ba2"})
    return built


@pytest.fixture
def folder(store: StoreBuilder, tmp_path: Path) -> str:
    store.save(OsFileSystem(), str(tmp_path / "store"))
    return str(tmp_path / "store")


def test_dump_prints_one_object_a_line(store: StoreBuilder, folder: str) -> None:
    result = run("dump", "--json", folder)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows[0] == {
        "physical_offset": 0,
        "size": len(store.records[0].data),
        "topic": "Orders",
        "queue_id": 3,
        "queue_offset": 0,
        "message_id": "U0",
        "stored_id": "0A00000500002A9F0000000000000000",
        "tag": "A",
        "keys": ["k1", "k2"],
        "properties": {"UNIQ_KEY": "U0", "TAGS": "A", "KEYS": "k1 k2"},
        "sys_flag": 0,
        "born_at": "2023-11-14T22:13:20.995Z",
        "stored_at": "2023-11-14T22:13:21.000Z",
        "body_base64": base64.b64encode(b"plain").decode(),
        "crc_ok": True,
    }
    assert base64.b64decode(rows[1]["body_base64"]) == b"zipped" * 50
    assert rows[1]["sys_flag"] == 0x200
    assert rows[2]["message_id"] == rows[2]["stored_id"]
    assert rows[2]["properties"] == {"x": "\x1b[31m\u8ba2"}


def test_dump_applies_its_filters(store: StoreBuilder, folder: str) -> None:
    assert len(run("dump", "--json", folder, "--topic", "Other").stdout.splitlines()) == 1
    assert len(run("dump", "--json", folder, "--limit", "2").stdout.splitlines()) == 2
    assert run("dump", "--json", folder, "--limit", "0").stdout == ""
    result = run("dump", "--json", folder, "--from", "1")
    assert next(json.loads(line)["message_id"] for line in result.stdout.splitlines()) == "U1"
    assert result.stderr == ""


def test_dump_for_a_terminal_holds_no_control_characters(folder: str) -> None:
    result = run("dump", folder)
    assert len(result.stdout.splitlines()) == 4
    assert "Orders/3@0" in result.stdout
    assert "\x1b" not in result.stdout


def test_dump_shows_damaged_records_as_such(store: StoreBuilder, tmp_path: Path) -> None:
    victim = store.records[1]
    store.flip((victim.offset + 95) * 8)
    store.save(OsFileSystem(), str(tmp_path))
    result = run("dump", "--json", str(tmp_path))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["crc_ok"] for row in rows] == [True, False, True]
    assert f"{len(victim.data)} bytes at {victim.offset}" in result.stderr
    assert "BAD" in run("dump", str(tmp_path)).stdout


def test_verify_as_json(store: StoreBuilder, tmp_path: Path) -> None:
    store.abort = True
    store.save(OsFileSystem(), str(tmp_path))
    result = run("verify", "--json", str(tmp_path))
    report = json.loads(result.stdout)
    assert (result.exit_code, report["result"], report["needs_recovery"]) == (0, "needs recovery", True)
    assert (report["records"], report["problems"], report["record_checksum_from"]) == (3, 0, 0)
    store.flip(90 * 8)
    store.save(OsFileSystem(), str(tmp_path))
    result = run("verify", "--json", str(tmp_path))
    report = json.loads(result.stdout)
    assert (result.exit_code, report["result"], report["damaged_bytes"]) == (1, "damaged", len(store.records[0].data))
    found = report["findings"][0]
    assert (found["severity"], found["kind"], found["offset"]) == ("problem", "commitlog", 0)
    assert found["bytes"] == len(store.records[0].data)


def test_verify_for_a_terminal(folder: str) -> None:
    result = run("verify", folder)
    assert result.exit_code == 0
    assert "3 records" in result.stdout
    assert "every record from 0 on" in result.stdout


def test_the_number_of_index_slots_may_be_given(store: StoreBuilder, folder: str) -> None:
    result = run("verify", folder, "--index-slots", "7")
    assert result.exit_code == 1
    assert "fit no index file with 7 slots" in result.stdout
    assert run("verify", folder, "--index-slots", str(store.slots)).exit_code == 0
    assert run("verify", folder, "--index-slots", "0").exit_code == 2


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
def test_an_unreadable_store_is_refused_in_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path / "no", "no such folder"), (tmp_path, "is no store"), (tmp_path / "file", "folder")):
        result = run(command, str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert reason in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_repair_recovers_a_store_after_a_crash(store: StoreBuilder, tmp_path: Path) -> None:
    store.abort = True
    store.units[("Orders", 3)] = store.units[("Orders", 3)][:20]
    store.save(OsFileSystem(), str(tmp_path))
    assert "units not written yet: 1" in run("verify", str(tmp_path)).stdout
    command = [sys.executable, "-c", MAIN, "store", "repair", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    result = run("verify", "--json", str(tmp_path))
    report = json.loads(result.stdout)
    assert (report["result"], report["records"], report["units"]) == ("ok", 3, 3)


def test_newer_formats_are_refused(folder: str) -> None:
    (Path(folder) / "config" / "gantry.json").write_text('{"format_version": 7}')
    result = run("verify", folder)
    assert result.exit_code == 2
    assert "format 7" in result.stderr


@pytest.mark.parametrize("command", ["verify", "dump", "repair"])
def test_a_store_in_use_is_refused(command: str, folder: str) -> None:
    holder = (
        "import sys; from gantry.runtime.osfilesystem import OsFileSystem; "
        f"lock = OsFileSystem().lock({folder + '/lock'!r}); print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holder], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        result = run(command, folder)
        process.communicate(b"")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"gantry: {folder}: a broker runs on this store; stop it first\n"
    assert run("verify", folder).exit_code == 0


def test_a_folder_that_may_not_be_read_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OsFileSystem, path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(OsFileSystem, "list_dir", refuse)
    result = run("verify", folder)
    assert result.exit_code == 2
    assert result.stderr == f"gantry: {folder}/commitlog: Permission denied\n"


def test_a_closed_pipe_ends_the_dump_quietly(tmp_path: Path) -> None:
    store = StoreBuilder(log_file_bytes=1 << 20, queue_file_bytes=200_000, slots=10)
    store.abort = True
    for _ in range(3000):
        store.add(properties={})
    store.save(OsFileSystem(), str(tmp_path))
    reading, writing = os.pipe()
    command = [sys.executable, "-c", MAIN, "store", "dump", "--json", str(tmp_path)]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        os.read(reading, 100)
        os.close(reading)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def test_bodies_that_can_not_be_inflated_are_null(tmp_path: Path) -> None:
    store = StoreBuilder()
    store.add(body=b"no zlib", sys_flag=0x1)
    store.save(OsFileSystem(), str(tmp_path))
    (line,) = run("dump", "--json", str(tmp_path)).stdout.splitlines()
    assert json.loads(line)["body_base64"] is None
    assert json.loads(line)["sys_flag"] == 1


def test_times_that_are_no_moment_are_null() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(-1) == "1969-12-31T23:59:59.999Z"
    assert iso_time(2**63 - 1) is None
    assert iso_time(-(2**63)) is None
