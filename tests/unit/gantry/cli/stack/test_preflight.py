"""Checks of the disk before `gantry up` starts any process."""

from pathlib import Path

import pytest

from gantry.cli.stack.layout import Layout, StackOptions
from gantry.cli.stack.preflight import check_disk, format_mebibytes
from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from tests.support.memfilesystem import MemFileSystem

GIB = 1 << 30
LAYOUT = Layout(StackOptions(data=Path("/data"), brokers=2), exists=lambda path: False)


def disk(*, gib: int, used_gib: int, is_new: bool = True) -> MemFileSystem:
    files = MemFileSystem(SystemClock(), capacity_bytes=gib * GIB)
    files.foreign_bytes = used_gib * GIB
    files.make_dirs("/data" if is_new else "/data/broker-a")
    return files


def said(files: MemFileSystem) -> list[str]:
    lines: list[str] = []
    check_disk(LAYOUT, files, lines.append)
    return lines


def test_a_new_stack_reports_the_disk_space_it_needs() -> None:
    assert said(disk(gib=100, used_gib=10)) == [
        f"/data is new: about {format_mebibytes(LAYOUT.disk_bytes())} of disk are allocated for it"
    ]
    assert said(disk(gib=100, used_gib=10, is_new=False)) == []


def test_a_new_stack_without_room_is_refused() -> None:
    with pytest.raises(StartupError, match=r"/data needs 1,532 MiB .* but 1,024 MiB are free: free some"):
        said(disk(gib=10, used_gib=9))


def test_a_disk_above_the_watermark_is_reported() -> None:
    (line,) = said(disk(gib=100, used_gib=92, is_new=False))
    assert "92 % full, above the watermark of 90 %" in line
    assert said(disk(gib=100, used_gib=90, is_new=False)) == []
