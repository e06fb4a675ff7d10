"""Requests of a round of samples, and the samples that result from the answers."""

import pytest

from gantry.client.backlog import FirstUnconsumed
from gantry.model.javahash import java_hash
from services.gateway.usecases.sampling.rounds import (
    EVERYTHING,
    HEAD_KEPT_MS,
    SQL_KEPT_MS,
    UNSEARCHABLE,
    Filter,
    HeadSearchResult,
    OffsetRange,
    Sample,
    filter_of,
    find_search,
    first_stored_at,
    is_first_known,
    sample_of,
    search_result,
)

PAIR = ("G", "T", "broker-a")
QUEUE = OffsetRange(10, 100)


def head(**changed):
    facts = dict.fromkeys(
        ("queue_offset", "physical_offset", "size", "tags_code", "stored_at_ms", "expires_at_ms", "error")
    )
    facts |= {"min_offset": 10, "max_offset": 100, "expires_at_is_earliest": False, "now_ms": 0}
    return FirstUnconsumed(**{**facts, **changed})


def found(begun_at, at, wanted=EVERYTHING, at_ms=0):
    return search_result(head(queue_offset=at, stored_at_ms=at * 1_000), begun_at, wanted, at_ms)


def nothing(begun_at, up_to):
    return search_result(head(max_offset=up_to), begun_at, EVERYTHING, 0)


@pytest.mark.parametrize(
    ("known", "committed", "start"),
    [
        (None, 100, None),  # The group has consumed all messages.
        (None, 120, None),  # The commit is beyond the end of the queue.
        (None, 50, 50),
        (None, 3, 10),  # The committed message was removed.
        (found(50, 60), 50, None),
        (found(50, 60), 60, None),
        (found(50, 60), 61, 61),
        (found(50, 60), 40, 40),  # The group was rewound: there may be earlier matches.
        (found(50, 160), 50, 50),  # The topic was created anew.
        (nothing(50, 80), 50, 80),
        (nothing(50, 80), 90, 90),
        (nothing(50, 80), 20, 20),
        (nothing(50, 100), 50, None),
        (nothing(50, 130), 50, 50),
        (search_result(head(error="damaged"), 50, EVERYTHING, 0), 50, None),
        (search_result(head(error="damaged"), 50, EVERYTHING, 0), 51, 51),
        (search_result(None, 50, EVERYTHING, 0), 51, None),  # The search took too long, and would do so again.
    ],
)
def test_only_changed_queues_are_searched(known: HeadSearchResult | None, committed: int, start: int | None):
    assert find_search(known, committed, QUEUE, EVERYTHING, now_ms=1) == start


def test_a_search_is_repeated_for_another_filter_and_after_a_while():
    known = found(50, 60)
    assert find_search(known, 50, QUEUE, Filter((7,)), now_ms=1) == 50
    assert find_search(known, 50, QUEUE, EVERYTHING, now_ms=HEAD_KEPT_MS - 1) is None
    assert find_search(known, 50, QUEUE, EVERYTHING, now_ms=HEAD_KEPT_MS) == 50
    assert find_search(search_result(None, 50, EVERYTHING, 0), 50, QUEUE, EVERYTHING, now_ms=HEAD_KEPT_MS) == 50


def test_a_first_message_is_known_only_while_it_is_the_first():
    assert first_stored_at(found(50, 60), 55, QUEUE) == 60_000
    assert first_stored_at(found(50, 60), None, QUEUE) is None
    assert first_stored_at(found(50, 60), 61, QUEUE) is None
    assert first_stored_at(found(5, 8), 5, QUEUE) is None
    assert first_stored_at(nothing(50, 100), 50, QUEUE) is None
    assert first_stored_at(search_result(head(error="damaged", queue_offset=60), 50, EVERYTHING, 0), 50, QUEUE) is None
    assert first_stored_at(None, 50, QUEUE) is None


def test_a_rewound_group_has_no_first_message_until_the_search_is_repeated():
    assert first_stored_at(found(50, 60), 40, QUEUE) is None
    assert not is_first_known(found(50, 60), 40, QUEUE)


@pytest.mark.parametrize(
    ("known", "committed", "is_known"),
    [
        (found(50, 60), 55, True),
        (None, 100, True),  # Nothing is unconsumed.
        (None, 50, False),
        (None, None, False),
        (None, 101, False),  # The commit is beyond the end.
        (nothing(50, 100), 50, True),  # The filter accepts none.
        (nothing(50, 100), 70, True),
        (nothing(50, 100), 40, False),
        (nothing(50, 80), 50, False),  # The search has not ended.
        (search_result(head(error="damaged"), 50, EVERYTHING, 0), 50, False),
        (search_result(head(queue_offset=60), 50, EVERYTHING, 0), 50, False),  # The record can't be read.
        (search_result(None, 50, EVERYTHING, 0), 50, False),
    ],
)
def test_no_message_is_distinguished_from_an_unknown_one(known, committed, is_known):
    assert is_first_known(known, committed, QUEUE) is is_known
    sample = sample_of(PAIR, {0: QUEUE, 1: OffsetRange(0, 0)}, {} if committed is None else {0: committed}, {0: known})
    assert sample.is_age_known is is_known


def test_an_unfinished_search_continues_and_is_kept_longer_for_an_sql_filter():
    wanted = Filter(sql="a > 5")
    known = search_result(head(scanned_to=70), 50, wanted, 0)
    assert find_search(known, 50, QUEUE, wanted, now_ms=SQL_KEPT_MS - 1) == 70
    assert find_search(known, 50, QUEUE, wanted, now_ms=SQL_KEPT_MS) == 50
    assert find_search(known, 50, QUEUE, Filter(sql="a > 6"), now_ms=1) == 50


def test_filters():
    assert filter_of("TAG", "*") is filter_of("TAG", "") is EVERYTHING
    assert filter_of("TAG", "AA || UA").codes == tuple(sorted((java_hash("AA"), java_hash("UA"))))
    assert filter_of("SQL92", "a > 1") == Filter(sql="a > 1")
    for kind, expression in (
        ("SQL92", "a" * 200_000),
        ("CLASS", "x"),
        ("TAG", " || "),
        ("TAG", "||".join(f"t{n}" for n in range(2_000))),
    ):
        assert filter_of(kind, expression) is UNSEARCHABLE


def test_a_sample_has_the_order_of_its_queues():
    sample = sample_of(PAIR, {3: QUEUE, 1: OffsetRange(0, 5)}, {3: 50, 9: 1}, {3: found(50, 60)})
    assert sample == Sample(
        *PAIR,
        queue_ids=(1, 3),
        min_offsets=(0, 10),
        max_offsets=(5, 100),
        committed_offsets=(None, 50),
        first_stored_at_ms=(None, 60_000),
    )
