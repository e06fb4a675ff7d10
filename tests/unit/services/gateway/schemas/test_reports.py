"""Reports in requests: windows and ids."""

import uuid
from datetime import UTC, datetime

import msgspec
import pytest

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.reading import read_json
from services.gateway.schemas.reports import NewRun, read_run_id, read_window

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
DECODER = msgspec.json.Decoder(NewRun)


NOW_MS = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1_000)


def test_a_window_is_two_moments_in_order():
    wanted = read_json(b'{"window":{"from":"2026-11-21T09:30:00.123Z","to":"2026-11-21T10:00:00Z"}}', DECODER)
    start, end = read_window(wanted.window, now_ms=NOW_MS)
    assert (start, end) == (AT, datetime(2026, 11, 21, 10, tzinfo=UTC))
    assert read_json(b"{}", DECODER).window is read_json(b'{"window":null}', DECODER).window is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"window":{"from":"2026-11-21T09:30:00Z","to":"2026-11-21T09:30:00Z"}}', "/window/to"),
        (b'{"window":{"from":"yesterday","to":"2026-11-21T09:30:00Z"}}', "/window/from"),
        (b'{"window":{"from":"2026-11-21T09:30:00Z"}}', "/window/to"),
        (b'{"window":{"from":"2026-11-21T09:30:00Z","to":"2026-11-21T10:30:00Z","step":1}}', "/window/step"),
        (b'{"windows":null}', "/windows"),
        (b'{"window":{"from":"1969-12-31T23:59:59.999Z","to":"2026-11-21T09:30:00Z"}}', "/window/from"),
        # The job would run once, and the data after that run would be missing for good.
        (b'{"window":{"from":"2026-11-21T09:30:00Z","to":"2026-11-21T10:00:00.001Z"}}', "/window/to"),
    ],
)
def test_an_invalid_window_is_named(body, field):
    with pytest.raises(InvalidValueError) as caught:
        read_window(read_json(body, DECODER).window, now_ms=NOW_MS)
    assert caught.value.field == field


def test_a_run_is_given_by_its_id_or_as_the_latest():
    assert read_run_id("latest", "run") is None
    assert read_run_id(str(uuid.UUID(int=7)), "run") == uuid.UUID(int=7)
    for text in (
        "",
        "LATEST",
        "7",
        str(uuid.UUID(int=10)).upper(),
        "{" + str(uuid.UUID(int=7)) + "}",
        uuid.UUID(int=7).hex,
    ):
        with pytest.raises(InvalidValueError):
            read_run_id(text, "run")
