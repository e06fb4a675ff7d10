"""The history checker finds each kind of violation; a checker that can't fail would be useless."""

import pytest

from gantry.client.errors import Outcome
from gantry.model.message import MessageQueue
from tests.fault.history import Found, History, check

QUEUE = MessageQueue("T", "broker-a", 0)


def history_of(*keys: str) -> tuple[History, list[Found]]:
    """Sends that were stored one after the other, and the messages that are read then."""
    history = History()
    for offset, key in enumerate(keys):
        history.stored(history.begin(key, QUEUE, key.encode()), QUEUE, offset)
    return history, [Found(QUEUE, offset, key, key.encode()) for offset, key in enumerate(keys)]


def test_a_consistent_history_has_no_violations() -> None:
    history, found = history_of("a", "b", "c")
    history.begin("lost", QUEUE, b"lost")
    history.begin("found", QUEUE, b"found")
    history.failed(history.begin("no", QUEUE, b"no"), Outcome.NOT_STORED)
    history.saw(found[1])
    assert check(history, [*found, Found(QUEUE, 3, "found", b"found")], gapless=True) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found[:2], "c was stored there, found nothing"),
        (lambda found: [found[0]._replace(key="b"), found[1]._replace(key="a"), found[2]], "found b"),
        (lambda found: [*found, Found(QUEUE, 3, "x", b"x")], "x was never sent"),
        (lambda found: [*found, Found(QUEUE, 3, "no", b"no")], "no was answered not_stored"),
        (lambda found: [found[0]._replace(body=b"A"), *found[1:]], "the body of a is not"),
        (lambda found: [*found, found[0]._replace(queue_offset=3)], "a is there 2 times"),
        (lambda found: [*found, found[0]], "was read twice"),
        (lambda found: [*found, Found(QUEUE, 4, "open", b"open")], "offset 3: nothing up to 4"),
    ],
)
def test_broken_input_is_reported(change, said) -> None:
    history, found = history_of("a", "b", "c")
    history.begin("open", QUEUE, b"open")
    history.failed(history.begin("no", QUEUE, b"no"), Outcome.NOT_STORED)
    assert any(said in line for line in check(history, change(found), gapless=True))


def test_order_counts_only_where_one_send_ended_before_the_other_began() -> None:
    history = History()
    first, second = history.begin("first", QUEUE, b"1"), history.begin("second", QUEUE, b"2")
    history.stored(second, QUEUE, 0)
    history.stored(first, QUEUE, 1)
    found = [Found(QUEUE, 0, "second", b"2"), Found(QUEUE, 1, "first", b"1")]
    assert check(history, found) == []
    third = history.begin("third", QUEUE, b"3")
    history.stored(third, QUEUE, 0)
    found = [Found(QUEUE, 0, "third", b"3"), Found(QUEUE, 1, "first", b"1")]
    assert any("first comes after third" in line for line in check(history, found))


def test_a_message_that_was_read_must_stay() -> None:
    history, found = history_of("a")
    history.begin("open", QUEUE, b"open")
    history.saw(Found(QUEUE, 1, "open", b"open"))
    assert any("a reader was given open, found nothing" in line for line in check(history, found))


def test_only_acknowledgements_before_the_cut_are_promises() -> None:
    history, found = history_of("a", "b")
    cut = history.now()
    history.stored(history.begin("c", QUEUE, b"c"), QUEUE, 2)
    assert check(history, found, until=cut) == []
    assert len(check(history, found)) == 1
    assert len(check(history, found[:1], until=cut)) == 1


def test_messages_of_a_deleted_topic_are_not_promised_but_those_of_a_new_one_are() -> None:
    history, found = history_of("old", "older")
    history.saw(found[0])
    history.forget("T")
    assert check(history, []) == []
    history.stored(history.begin("new", QUEUE, b"new"), QUEUE, 0)
    assert check(history, [Found(QUEUE, 0, "new", b"new")]) == []
    assert any("new was stored there, found old" in line for line in check(history, found))
