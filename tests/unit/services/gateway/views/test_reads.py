"""Results of reading in the form of answers, with the order of the fields."""

import pytest

from gantry.client.consumer.pull import PullStatus
from services.gateway.asgi.answer import encode_json
from services.gateway.usecases.reading.results import DamagedRecord, FoundMessages, QueueRead, TopicQueue
from services.gateway.views.reads import found_view, queue_read_view, queue_view

DAMAGED = DamagedRecord(3, "AB", "torn"), DamagedRecord(4, None, "no magic")


@pytest.mark.parametrize(
    ("binary", "shown"),
    [
        (
            False,
            (
                b'{"status":"FOUND","messages":[],"next_offset":"5","min_offset":"0","max_offset":"9","damaged":['
                b'{"queue_offset":"3","stored_id":"AB","reason":"torn"},'
                b'{"queue_offset":"4","stored_id":null,"reason":"no magic"}]}'
            ),
        ),
        (
            True,
            (
                b'{"status":"FOUND","messages":[],"next_offset":5,"min_offset":0,"max_offset":9,"damaged":['
                b'{"queue_offset":3,"stored_id":"AB","reason":"torn"},'
                b'{"queue_offset":4,"stored_id":null,"reason":"no magic"}]}'
            ),
        ),
    ],
)
def test_damaged_records_are_reported_behind_the_offsets(binary, shown):
    read = QueueRead(PullStatus.FOUND, [], DAMAGED, 5, 0, 9)
    assert encode_json(queue_read_view(read, binary=binary, system=False)) == shown


def test_an_answer_without_damage_does_not_mention_it():
    view = queue_read_view(QueueRead(PullStatus.NO_NEW_MSG, [], [], 5, 0, 5), binary=False, system=False)
    assert encode_json(view) == (
        b'{"status":"NO_NEW_MSG","messages":[],"next_offset":"5","min_offset":"0","max_offset":"5"}'
    )


def test_a_search_shows_its_counts_without_the_messages():
    found = FoundMessages(iter(()), scanned=3, is_truncated=True)
    assert encode_json(found_view(found, binary=False)) == b'{"next_cursor":null,"scanned":"3","truncated":true}'
    assert encode_json(found_view(found, binary=True)) == b'{"next_cursor":null,"scanned":3,"truncated":true}'


@pytest.mark.parametrize(
    ("queue", "shown"),
    [
        (
            TopicQueue("a", 1, 0, 2**53 + 1, True, False, 1_500),
            (
                b'{"broker":"a","queue_id":1,"min_offset":"0","max_offset":"9007199254740993","read":true,"write":false,'
                b'"last_stored_at":"1970-01-01T00:00:01.500Z"}'
            ),
        ),
        (
            TopicQueue("b", 0, None, None, None, None, None),
            (
                b'{"broker":"b","queue_id":0,"min_offset":null,"max_offset":null,"read":null,"write":null,'
                b'"last_stored_at":null}'
            ),
        ),
    ],
)
def test_a_queue_shows_its_offsets_as_text(queue, shown):
    assert encode_json(queue_view(queue)) == shown
