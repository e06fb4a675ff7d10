"""The due time in the unit of a delayed message."""

from typing import Any, cast

import pytest

from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.javahash import tags_code
from gantry.model.names import SCHEDULE_TOPIC
from gantry.storeformat.layout import ConsumeQueueUnit
from services.broker.store.dispatchrequest import DispatchRequest, DispatchRequestMaker
from services.broker.store.settings import StoreSettings

NOW_MS = 1_700_000_000_000


@pytest.fixture
def maker() -> DispatchRequestMaker:
    return DispatchRequestMaker(cast(Any, None), StoreSettings(store_path_root_dir="/store"))


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"TAGS\x01a\x02DELAY\x0112\x02REAL_QID\x010\x02", 12),
        (b"DELAY\x0112\x02TAGS\x01a\x02", 12),
        (b"DELAY\x0112", 12),
        (b"TAGS\x01a\x02DELAY\x0112", 12),
        (b"TAGS\x01a\x02DELAY\x01012\x02", 12),
        (b"TAGS\x01a\x02DELAY\x0199\x02", 18),
        (b"DELAY\x013\x02TAGS\x01a\x02DELAY\x0112\x02", 12),
        (b"DELAY\x0112\x02TAGS\x01a\x02DELAY\x01\x02", 12),
    ],
)
def test_a_message_is_due_after_its_level(maker: DispatchRequestMaker, properties: bytes, level: int) -> None:
    due_ms = maker.tags_code(SCHEDULE_TOPIC, "a", properties, NOW_MS)
    assert due_ms == NOW_MS + DELAY_LEVELS_MS[level - 1]


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02", b"TAGS\x01a\x02DELAY\x01x\x02", b"xDELAY\x0112\x02"])
def test_a_message_without_a_level_has_the_hash_of_its_tag(maker: DispatchRequestMaker, properties: bytes) -> None:
    assert maker.tags_code(SCHEDULE_TOPIC, "a", properties, NOW_MS) == tags_code("a")


def test_levels_that_are_set_count_from_then_on(maker: DispatchRequestMaker) -> None:
    maker.set_delay_levels((5, 7))
    assert [maker.tags_code(SCHEDULE_TOPIC, "", b"a\x01b\x02DELAY\x01%d\x02" % level, 0) for level in (1, 2, 3)] == [
        5,
        7,
        7,
    ]


class OneUnit:
    """A queue with one unit."""

    max_offset = 1

    def __init__(self, tags_code: int) -> None:
        self.tags_code = tags_code

    def unit(self, index: int) -> ConsumeQueueUnit:
        return ConsumeQueueUnit(4_096, 322, self.tags_code)


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        (NOW_MS + 3_000, NOW_MS + 3_000),  # The level took longer when the message was stored.
        (0, NOW_MS + 1_000),  # A power cut left the first part of the unit, up to the border of a sector.
        (NOW_MS >> 32 << 32, NOW_MS + 1_000),
    ],
)
def test_a_unit_keeps_its_due_time_unless_only_a_part_of_it_is_on_the_disk(there: int, kept: int) -> None:
    request = DispatchRequest(4_096, 322, None, 0, NOW_MS + 1_000, SCHEDULE_TOPIC, "", "", NOW_MS)
    assert request.tags_code_in(cast(Any, OneUnit(there))) == kept
