"""Requests, answers and reads of a load, and a check of whether they are consistent.

A load writes a History while it runs. The History's clock counts events, so that "before" is exact within one process.
`check` compares it with the messages that can be read afterwards: from the same broker, from a restarted one or from
the copy that a power cut left. It returns the violations, one sentence each:

- every message answered `stored` is there, once, at its offset, with its bytes;
- no message answered `not_stored` is there;
- every message that is there was sent, and is complete;
- every message that a reader has received is still there;
- if one send to a queue was answered before another one began, it has the smaller offset.

A send without an answer may or may not be stored.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gantry.client.errors import Outcome
from gantry.model.message import MessageQueue

VIOLATIONS_SHOWN = 10
NEVER = 1 << 62


@dataclass(slots=True)
class Send:
    """One send: the request and its outcome.

    Attributes:
        key: The message's id.
        queue: The requested queue or, once answered, the actual one; None while it is unknown.
        is_single: The send was tried once, so that it can't be stored twice.
        ended: Moment of the answer; a send without one may still be stored.
    """

    key: str
    queue: MessageQueue | None
    body: bytes
    is_single: bool
    began: int
    ended: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    queue_offset: int = -1


class Found(NamedTuple):
    """A message as it was read."""

    queue: MessageQueue
    queue_offset: int
    key: str
    body: bytes


@dataclass(slots=True)
class History:
    """All requests and answers of one test.

    Attributes:
        sends: All sends, by message id.
        seen: Messages that readers received: message id and moment, by place.
        commits: The offsets that a group has tried to commit, by queue.
    """

    sends: dict[str, Send] = field(default_factory=dict)
    seen: dict[tuple[MessageQueue, int], tuple[str, int]] = field(default_factory=dict)
    commits: dict[MessageQueue, set[int]] = field(default_factory=lambda: defaultdict(set))
    _clock: "itertools.count[int]" = field(default_factory=itertools.count)

    def now(self) -> int:
        """Return a moment later than all earlier ones."""
        return next(self._clock)

    def begin(self, key: str, queue: MessageQueue | None, body: bytes, *, is_single: bool = True) -> Send:
        """Record the start of a send."""
        assert key not in self.sends, f"{key} is sent twice"
        send = self.sends[key] = Send(key, queue, body, is_single, self.now())
        return send

    def stored(self, send: Send, queue: MessageQueue, queue_offset: int) -> None:
        """Record the answer `stored`."""
        send.outcome, send.queue, send.queue_offset = Outcome.STORED, queue, queue_offset
        send.ended = self.now()

    def failed(self, send: Send, outcome: Outcome) -> None:
        """Record that a send was not answered `stored`."""
        assert outcome is not Outcome.STORED, "a failed send is not stored"
        send.outcome = outcome
        if outcome is Outcome.NOT_STORED:
            send.ended = self.now()

    def saw(self, found: Found) -> None:
        """Record that a reader received a message."""
        self.seen[found.queue, found.queue_offset] = (found.key, self.now())

    def forget(self, topic: str) -> None:
        """Record that a topic is about to be deleted: its messages may disappear from now on."""
        for send in self.sends.values():
            if send.queue is not None and send.queue.topic == topic and send.outcome is Outcome.STORED:
                send.outcome, send.ended = Outcome.UNKNOWN, NEVER
        self.seen = {place: seen for place, seen in self.seen.items() if place[0].topic != topic}

    def next_unseen(self, queue: MessageQueue) -> int:
        """Return the offset after the last one that a reader received."""
        return max((offset + 1 for seen, offset in self.seen if seen == queue), default=0)

    def count(self, outcome: Outcome) -> int:
        """Return the number of sends with an outcome."""
        return sum(send.outcome is outcome for send in self.sends.values())

    def summary(self) -> str:
        """Return the numbers of a run as text."""
        outcomes = ", ".join(f"{self.count(outcome)} {outcome}" for outcome in Outcome)
        return f"{outcomes}, {len(self.seen)} places seen by readers"


def check(history: History, found: Iterable[Found], *, until: int = NEVER, gapless: bool = False) -> list[str]:
    """Compare a history with every message that can be read.

    Args:
        history: The requests and answers.
        found: Every message that can be read.
        until: The moment before the power cut. Only earlier answers are promises.
        gapless: No queue offset between the first and the last one may be empty.

    Returns:
        The violations; empty if there are none.
    """
    by_place: dict[tuple[MessageQueue, int], Found] = {}
    by_key: dict[str, list[Found]] = defaultdict(list)
    broken: list[str] = []
    for message in found:
        place = (message.queue, message.queue_offset)
        if place in by_place:
            broken.append(f"{_at(*place)} was read twice")
        by_place[place] = message
        by_key[message.key].append(message)
    broken += _check_found(history, by_key)
    broken += _check_stored(history, by_place, until)
    broken += _check_seen(history, by_place, until)
    broken += _check_order(history, by_place)
    if gapless:
        broken += _check_gaps(by_place)
    return broken


def assert_kept(history: History, found: Iterable[Found], *, until: int = NEVER, gapless: bool = False) -> None:
    """Fail with the first violations."""
    broken = check(history, found, until=until, gapless=gapless)
    shown = "\n".join(broken[:VIOLATIONS_SHOWN])
    assert not broken, f"{len(broken)} promises broken ({history.summary()}):\n{shown}"


def _check_found(history: History, by_key: dict[str, list[Found]]) -> list[str]:
    broken = []
    for key, messages in by_key.items():
        send = history.sends.get(key)
        where = _at(messages[0].queue, messages[0].queue_offset)
        if send is None:
            broken.append(f"{where}: {key} was never sent")
            continue
        if send.outcome is Outcome.NOT_STORED:
            broken.append(f"{where}: {key} was answered not_stored")
        if any(message.body != send.body for message in messages):
            broken.append(f"{where}: the body of {key} is not the one that was sent")
        if send.is_single and len(messages) > 1:
            broken.append(f"{where}: {key} is there {len(messages)} times")
    return broken


def _check_stored(history: History, by_place: dict[tuple[MessageQueue, int], Found], until: int) -> list[str]:
    broken = []
    for send in history.sends.values():
        if send.outcome is not Outcome.STORED or send.ended >= until:
            continue
        assert send.queue is not None, "what is stored has a place"
        there = by_place.get((send.queue, send.queue_offset))
        if there is None or there.key != send.key:
            instead = "nothing" if there is None else there.key
            broken.append(f"{_at(send.queue, send.queue_offset)}: {send.key} was stored there, found {instead}")
    return broken


def _check_seen(history: History, by_place: dict[tuple[MessageQueue, int], Found], until: int) -> list[str]:
    broken = []
    for place, (key, at) in history.seen.items():
        there = by_place.get(place)
        if at < until and (there is None or there.key != key):
            instead = "nothing" if there is None else there.key
            broken.append(f"{_at(*place)}: a reader was given {key}, found {instead}")
    return broken


def _check_order(history: History, by_place: dict[tuple[MessageQueue, int], Found]) -> list[str]:
    broken = []
    latest: dict[MessageQueue, Send] = {}
    for (queue, offset), message in sorted(by_place.items(), key=lambda item: item[0]):
        send = history.sends.get(message.key)
        if send is None or not send.is_single:
            continue
        before = latest.get(queue)
        if before is not None and before.began > send.ended:
            broken.append(f"{_at(queue, offset)}: {send.key} comes after {before.key}, which began when it was stored")
        if before is None or send.began > before.began:
            latest[queue] = send
    return broken


def _check_gaps(by_place: dict[tuple[MessageQueue, int], Found]) -> list[str]:
    broken = []
    for (queue, offset), (following, next_offset) in itertools.pairwise(sorted(by_place)):
        if queue == following and next_offset != offset + 1:
            broken.append(f"{_at(queue, offset + 1)}: nothing up to {next_offset}")
    return broken


def _at(queue: MessageQueue, offset: int) -> str:
    return f"{queue.topic} {queue.broker_name} queue {queue.queue_id} offset {offset}"
