import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.storeformat.errors import BrokenFileError, NewerFormatError
from gantry.storeformat.manifest import FORMAT_VERSION, StoreManifest, opened_manifest, trusted_manifest
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

offsets = st.none() | st.integers(0, 2**63 - 1)


@given(offsets, offsets, offsets)
def test_there_and_back(start: int | None, end: int | None, process_id: int | None) -> None:
    manifest = StoreManifest(record_checksum_from=start, clean_stop_offset=end, abort_process_id=process_id)
    files = MemFileSystem(FakeClock())
    manifest.dump(files, "/store")
    assert StoreManifest.load(files, "/store") == manifest


def test_a_store_of_another_broker_has_no_mark() -> None:
    assert StoreManifest.load(MemFileSystem(FakeClock()), "/store") is None


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="format 2, this release knows formats up to 1"):
        StoreManifest.decode(json.dumps({"format_version": FORMAT_VERSION + 1}).encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "format_version is None"),
        (b'{"format_version": true}', "format_version is True"),
        (b'{"format_version": 0}', "format_version is 0"),
        (b'{"format_version": 1, "record_checksum_from": -1}', "record_checksum_from is -1"),
        (b'{"format_version": 1, "clean_stop_offset": "1"}', "clean_stop_offset is '1'"),
    ],
)
def test_an_invalid_manifest_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenFileError, match=reason) as caught:
        StoreManifest.decode(data, "/store/config/gantry.json")
    assert "/store/config/gantry.json" in str(caught.value)


def test_members_of_later_minor_releases_are_ignored() -> None:
    assert StoreManifest.decode(b'{"format_version": 1, "new": [1]}') == StoreManifest()


@pytest.mark.parametrize("process_id", ["null", '"1"', "-1", "true", "[]"])
def test_an_unusable_process_id_is_none(process_id: str) -> None:
    data = f'{{"format_version": 1, "abort_process_id": {process_id}}}'.encode()
    assert StoreManifest.decode(data) == StoreManifest()


def test_the_manifest_requires_checksums_from_its_offset_on() -> None:
    assert not StoreManifest().demands_record_crc(0)
    running = StoreManifest(record_checksum_from=100)
    assert [running.demands_record_crc(offset) for offset in (99, 100, 10**9)] == [False, True, True]
    stopped = running.stopped(200)
    assert [stopped.demands_record_crc(offset) for offset in (99, 100, 199, 200)] == [False, True, True, False]


def test_a_mark_is_ignored_if_another_broker_has_run_since() -> None:
    crashed = StoreManifest(record_checksum_from=100)
    stopped = StoreManifest(record_checksum_from=100, clean_stop_offset=500)
    assert trusted_manifest(None, has_abort=False) is None
    assert trusted_manifest(crashed, has_abort=True) == crashed
    assert trusted_manifest(stopped, has_abort=True) == stopped
    assert trusted_manifest(stopped, has_abort=False) == stopped
    # Another broker recovered the store after our crash and stopped in order.
    trusted = trusted_manifest(crashed, has_abort=False)
    assert trusted == StoreManifest()
    assert opened_manifest(trusted, log_end=900, record_checksum=True) == StoreManifest(record_checksum_from=900)


@pytest.mark.parametrize(
    ("previous", "log_end", "expected"),
    [
        (None, 0, 0),
        (None, 500, 500),
        (StoreManifest(), 500, 500),
        (StoreManifest(record_checksum_from=100, clean_stop_offset=500), 500, 100),
        (StoreManifest(record_checksum_from=100), 500, 100),
        (StoreManifest(record_checksum_from=100, clean_stop_offset=500), 501, 501),
        (StoreManifest(record_checksum_from=100, clean_stop_offset=500), 50, 50),
    ],
)
def test_boundary_at_start(previous: StoreManifest | None, log_end: int, expected: int) -> None:
    opened = opened_manifest(previous, log_end=log_end, record_checksum=True)
    assert opened == StoreManifest(record_checksum_from=expected)
    assert opened_manifest(previous, log_end=log_end, record_checksum=False) == StoreManifest()
