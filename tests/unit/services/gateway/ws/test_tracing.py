"""Trace data of a stream's deliveries: each has a beginning, and an end if the client acknowledges or returns it."""

from gantry.model.message import MessageQueue, StoredMessage
from services.gateway.ws import tracing
from services.gateway.ws.tracing import DeliveryTrace
from tests.support.pulledrecords import pulled
from tests.unit.services.gateway.ws.streams import Stream, queue


class Noted:
    """A tracer that keeps what it is told: (queue offset, result)."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[tuple[int, bool]] = []

    def consuming(self, group: str, messages: list[StoredMessage]) -> "Ending":
        (message,) = messages
        self.begun.append(message.queue_offset)
        return Ending(self, message.queue_offset)


class Ending:
    def __init__(self, noted: Noted, offset: int) -> None:
        self._noted, self._offset = noted, offset

    def ended(self, *, is_success: bool) -> None:
        self._noted.ended.append((self._offset, is_success))


def traced(noted: Noted, **fields):
    stream = Stream()
    subscription = stream.subscribe({queue(0): 0}, **fields)
    subscription.trace = DeliveryTrace(noted, "G")  # type: ignore[arg-type]
    return stream, subscription, next(iter(subscription.feeds.values()))


def test_deliveries_begin_when_they_are_sent_and_end_with_their_ack() -> None:
    noted = Noted()
    stream, subscription, feed = traced(noted, batch=2)
    first, second = stream.pull(subscription, feed, pulled(range(4)), 4)
    assert noted.begun == [0, 1, 2, 3]
    stream.say(type="ack", subscription="s1", receipts=[first["receipt"]])
    assert noted.ended == [(0, True), (1, True)]
    stream.say(type="ack", subscription="s1", receipts=[second["messages"][0]["receipt"], second["receipt"]])
    assert noted.ended[2:] == [(2, True), (3, True)]


def test_a_returned_message_has_failed_and_begins_again() -> None:
    noted = Noted()
    stream, subscription, feed = traced(noted, batch=2, order="orderly")
    (batch,) = stream.pull(subscription, feed, pulled(range(2)), 2)
    stream.say(type="nack", subscription="s1", receipts=[batch["messages"][0]["receipt"]])
    assert noted.ended == [(0, False)]
    stream.now_ms += 2_000
    stream.take(stream.session.tick(overdue_before_ms=lambda _: stream.now_ms - 900_000, now_ms=stream.now_ms))
    stream.pull(subscription, feed, pulled(range(2)), 2)
    assert noted.begun == [0, 1, 0, 1]
    stream.say(type="ack", subscription="s1", receipts=[batch["receipt"]])
    assert noted.ended[1:] == [(1, True), (0, True)]


def test_deliveries_of_a_queue_that_moves_have_no_end() -> None:
    noted = Noted()
    trace = DeliveryTrace(noted, "G")  # type: ignore[arg-type]
    one, other = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
    for each in (one, other):
        trace.sent(each, pulled(range(2)), [0, 1], 0)
    trace.forget(one)
    trace.settled(one, 0, 1, is_success=True)
    trace.settled(other, 0, 1, is_success=True)
    assert noted.ended == [(0, True), (1, True)]


def test_ends_beyond_the_limit_are_not_awaited(monkeypatch) -> None:
    monkeypatch.setattr(tracing, "IN_FLIGHT_MAX", 2)
    noted = Noted()
    trace = DeliveryTrace(noted, "G")  # type: ignore[arg-type]
    trace.sent(queue(0), pulled(range(4)), range(4), 0)
    trace.settled(queue(0), 0, 3, is_success=True)
    assert (noted.begun, noted.ended) == ([0, 1, 2, 3], [(0, True), (1, True)])
