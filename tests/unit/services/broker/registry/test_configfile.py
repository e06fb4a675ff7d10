"""A config file and its backup: at least one of them can always be read."""

import errno
import os
import re

import pytest
import structlog

from gantry.runtime.errors import StartupError
from services.broker.registry.configfile import ConfigFile
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

PATH = "c/x.json"


@pytest.fixture
def files() -> MemFileSystem:
    files = MemFileSystem(FakeClock())
    files.make_dirs("c")
    return files


def opened(files: MemFileSystem) -> ConfigFile:
    file = ConfigFile(files, PATH)
    file.read(dict[str, int])
    return file


def contents(files: MemFileSystem) -> dict[str, bytes]:
    return {name: files.read(f"c/{name}") for name in files.list_dir("c")}


def test_the_old_content_is_kept_in_the_backup(files: MemFileSystem) -> None:
    file = opened(files)
    for number in (b"1", b"2", b"3"):
        file.write([b'{"a":', number, b"}"])
    assert contents(files) == {"x.json": b'{"a":3}', "x.json.bak": b'{"a":2}'}
    opened(files).write([b'{"a":4}'])
    assert contents(files) == {"x.json": b'{"a":4}', "x.json.bak": b'{"a":3}'}


@pytest.mark.parametrize("broken", [b"", b"\0\0", b'{"a":', b'{"a":"x"}'])
def test_a_broken_file_never_replaces_a_good_backup(files: MemFileSystem, broken: bytes) -> None:
    files.write(PATH, broken)
    files.write(f"{PATH}.bak", b'{"a":1}')
    file = ConfigFile(files, PATH)
    assert file.read(dict[str, int]) == {"a": 1}
    file.write([b'{"a":2}'])
    assert contents(files) == {"x.json": b'{"a":2}', "x.json.bak": b'{"a":1}', "x.json.broken": broken}
    file.write([b'{"a":3}'])
    assert contents(files)["x.json.bak"] == b'{"a":2}'


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_file_that_can_not_be_opened_for_the_moment_is_not_broken(files: MemFileSystem, number: int) -> None:
    """A broker without descriptors moved its good files away; a crash then lost the last topics and offsets."""
    fault = FaultFileSystem(files)
    file = ConfigFile(fault, PATH)
    file.write([b'{"a":1}'])
    file.write([b'{"a":2}'])
    fault.rules.append(FaultRule("read", "c/x.json", number))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        file.write([b'{"a":3}'])
    assert contents(files) == {"x.json": b'{"a":2}', "x.json.bak": b'{"a":1}'}
    fault.rules.clear()
    file.write([b'{"a":3}'])
    assert contents(files) == {"x.json": b'{"a":3}', "x.json.bak": b'{"a":2}'}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_start_uses_no_backup_for_a_file_that_can_not_be_opened_for_the_moment(
    files: MemFileSystem, number: int
) -> None:
    files.write(PATH, b'{"a":2}')
    files.write(f"{PATH}.bak", b'{"a":1}')
    fault = FaultFileSystem(files, FaultRule("read", "c/x.json", number))
    with pytest.raises(StartupError, match=re.escape(os.strerror(number))):
        ConfigFile(fault, PATH).read(dict[str, int])
    assert contents(files) == {"x.json": b'{"a":2}', "x.json.bak": b'{"a":1}'}


def test_a_file_that_the_disk_can_not_read_is_set_aside(files: MemFileSystem) -> None:
    files.write(PATH, b'{"a":5}')
    files.write(f"{PATH}.bak", b'{"a":1}')
    file = ConfigFile(FaultFileSystem(files, FaultRule("read", "c/x.json", times=2)), PATH)
    assert file.read(dict[str, int]) == {"a": 1}
    file.write([b'{"a":2}'])
    assert contents(files) == {"x.json": b'{"a":2}', "x.json.bak": b'{"a":1}', "x.json.broken": b'{"a":5}'}


def test_a_missing_file_leaves_its_backup_alone(files: MemFileSystem) -> None:
    files.write(f"{PATH}.bak", b'{"a":1}')
    opened(files).write([b'{"a":2}'])
    assert contents(files) == {"x.json": b'{"a":2}', "x.json.bak": b'{"a":1}'}


def test_a_file_that_becomes_bad_while_the_broker_runs_is_not_copied(files: MemFileSystem) -> None:
    file = opened(files)
    file.write([b'{"a":1}'])
    file.write([b'{"a":2}'])
    files.write(PATH, b'{"a":!}')
    file.write([b'{"a":3}'])
    assert contents(files)["x.json.bak"] == b'{"a":1}'


def test_a_file_that_was_never_read_is_copied_if_it_is_json(files: MemFileSystem) -> None:
    files.write(PATH, b'{"a":{0:1}}')
    ConfigFile(files, PATH).write([b"{}"])
    assert contents(files) == {"x.json": b"{}", "x.json.bak": b'{"a":{0:1}}'}
    files.write(PATH, b"{")
    ConfigFile(files, PATH).write([b"{}"])
    assert contents(files)["x.json.bak"] == b'{"a":{0:1}}'


def test_use_of_the_backup_is_logged(files: MemFileSystem) -> None:
    files.write(PATH, b"{")
    files.write(f"{PATH}.bak", b'{"a":1}')
    with structlog.testing.capture_logs() as lines:
        opened(files)
    (line,) = lines
    assert "uses its backup" in line["event"]
    for word in (PATH, "is not JSON", f"{PATH}.bak"):
        assert word in str(line)
    files.write(f"{PATH}.bak", b"[")
    with pytest.raises(StartupError, match=r"c/x\.json is not JSON.*c/x\.json\.bak .*move both"):
        opened(files)
