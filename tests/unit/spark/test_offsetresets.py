"""Resets on their way from Postgres into the samples and the survey of a report."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark.lagsamples import SCHEMA
from spark.offsetresets import OffsetReset, mark_samples, mark_survey

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SURVEY = pa.schema([*(SCHEMA.field(name) for name in ("group", "topic", "broker", "queue_id")),
                    ("reset_epoch", pa.int64()), SCHEMA.field("reset_messages")])  # fmt: skip


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def reset(seconds: int, epoch: int = 1, **more: Any) -> OffsetReset:
    values = {"broker": "a", "group": "g", "topic": "T", "queue_ids": [0], "from_offsets": [10], "to_offsets": [4]}
    return OffsetReset(**{"seen_at": at(seconds), "epoch": epoch, "is_settled": True, **values, **more})


def marked(*resets: OffsetReset) -> list[int | None]:
    keys = [("g", "T", "a", 0, 0), ("g", "T", "a", 0, 30), ("g", "T", "a", 0, 15), ("g", "T", "a", 1, 15),
            ("h", "T", "a", 0, 15), (None, "T", "a", 0, 15), ("g", "T", "b", 0, 15)]  # fmt: skip
    rows = [
        {"group": group, "topic": topic, "broker": broker, "queue_id": queue_id, "sampled_at": at(seconds)}
        for group, topic, broker, queue_id, seconds in keys
    ]
    table = mark_samples(pa.Table.from_pylist(rows, schema=SCHEMA), resets)
    assert table.schema == SCHEMA
    return table["reset_messages"].to_pylist()


def test_a_reset_marks_the_first_sample_of_its_queue_that_may_show_it() -> None:
    assert marked() == [None] * 7
    assert marked(reset(15)) == [None, None, -6, None, None, None, None]
    # Samples without changes are not written, and in long periods some are left out.
    assert marked(reset(16)) == [None, -6, None, None, None, None, None]
    assert marked(reset(31)) == [None] * 7
    both = reset(15, queue_ids=[0, 1], from_offsets=[None, 3], to_offsets=[9, None])
    assert marked(both) == [None, None, 0, 0, None, None, None]
    assert marked(reset(14), reset(15, 2, from_offsets=[4], to_offsets=[30])) == [None, None, 20, *[None] * 4]


def test_a_survey_keeps_the_resets_that_no_sample_shows_for_certain() -> None:
    keys = [("g", 0, 1, -6), ("g", 0, 2, 5), ("g", 0, 3, None), ("g", 1, 1, 7), ("h", 0, 1, 7), ("g", 0, None, None)]
    rows = [
        {"group": group, "topic": "T", "broker": "a", "queue_id": queue, "reset_epoch": epoch, "reset_messages": moved}
        for group, queue, epoch, moved in keys
    ]
    table = mark_survey(pa.Table.from_pylist(rows, schema=SURVEY), [reset(0, 1), reset(15, 2, is_settled=False)])
    assert table.schema == SURVEY
    assert table["reset_messages"].to_pylist() == [None, 5, 0, 7, 7, None]
