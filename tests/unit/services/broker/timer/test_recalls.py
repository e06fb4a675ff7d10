"""The table of recalls that the wheel may not know yet."""

from gantry.model.address import Address
from gantry.model.message import CrcState, StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from services.broker.timer.recalls import Deletions, Recalls


def waiting(physical_offset: int, **more: str) -> StoredMessage:
    properties = {PropertyName.REAL_TOPIC: "T", PropertyName.UNIQ_KEY: "a", **more}
    host = Address("10.0.0.5", 10911)
    return StoredMessage(
        TIMER_TOPIC, 0, 1, physical_offset, 100, 0, 0, 0, 1, host, 2, host, 0, 0, b"", properties, 1, CrcState.OK
    )


def deletion(physical_offset: int) -> StoredMessage:
    return waiting(physical_offset, TIMER_DEL_UNIQKEY="T+a")


def add(recalls: Recalls, second: int, key: str, queue_offset: int) -> None:
    recalls.add(second, key, physical_offset=100 + queue_offset, queue_offset=queue_offset)


def test_a_closed_second_hands_over_its_recalls_and_takes_no_more() -> None:
    recalls = Recalls()
    add(recalls, 5, "T+a", 0)
    add(recalls, 6, "T+b", 1)
    add(recalls, 5, "T+c", 2)
    assert (recalls.order(5, "T+a"), recalls.order(6, "T+a")) == (100, None)
    assert recalls.close(5) == {"T+a": 100, "T+c": 102}
    assert recalls.closed_before == 6
    assert recalls.close(4) == {}
    assert recalls.closed_before == 6


def test_a_recall_is_forgotten_when_its_second_has_fired_and_its_deletion_was_read() -> None:
    recalls = Recalls()
    for offset, second in enumerate((5, 5, 6)):
        add(recalls, second, f"T+{offset}", offset)
    recalls.forget(6, 1)
    assert [recalls.order(second, f"T+{offset}") for offset, second in enumerate((5, 5, 6))] == [None, 101, 102]
    recalls.forget(7, 3)
    assert len(recalls) == 0


def test_recalls_that_the_wheel_knows_make_room_and_others_do_not() -> None:
    recalls = Recalls(count_max=2)
    add(recalls, 5, "T+a", 0)
    add(recalls, 5, "T+b", 1)
    assert not recalls.has_room(0)
    assert len(recalls) == 2
    assert recalls.has_room(1)
    assert (recalls.order(5, "T+a"), recalls.order(5, "T+b")) == (None, 101)


def test_the_last_recall_of_a_message_counts_and_is_the_last_to_make_room() -> None:
    recalls = Recalls(count_max=2)
    add(recalls, 5, "T+a", 0)
    add(recalls, 5, "T+b", 1)
    add(recalls, 5, "T+a", 2)
    assert recalls.order(5, "T+a") == 102
    assert recalls.has_room(2)
    assert (recalls.order(5, "T+a"), recalls.order(5, "T+b")) == (102, None)


def test_a_deletion_hits_messages_that_were_stored_before_it_and_is_counted_once() -> None:
    deletions = Deletions()
    deletions.read(deletion(200))
    deletions.read(deletion(100))
    assert [deletions.hit(waiting(offset)) for offset in (50, 150, 199, 200, 250)] == [0, 0, -1, None, None]
    deletions.take({"T+a": 240, "T+b": 1})
    assert [deletions.hit(waiting(offset)) for offset in (239, 241)] == [-1, None]
    assert list(deletions.unused()) == [("T", 0)]


def test_the_order_of_the_wheel_counts_if_it_is_later() -> None:
    deletions = Deletions()
    deletions.read(deletion(200))
    deletions.take({"T+a": 100})
    assert deletions.hit(waiting(150, UNIQ_KEY="b")) is None
    assert list(deletions.unused()) == [("T", 1)]
    assert deletions.hit(waiting(150)) == 0


def test_a_copy_has_the_order_of_its_first_record() -> None:
    deletions = Deletions()
    deletions.read(deletion(200))
    rolled = {"TIMER_ROLL_TIMES": "1"}
    assert deletions.hit(waiting(300, **rolled, TIMER_FIRST_OFFSET="150")) == 0
    assert deletions.hit(waiting(300, **rolled, TIMER_FIRST_OFFSET="250")) is None
