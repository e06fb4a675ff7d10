"""Decides, from the answers of brokers, where the next batch of a stream ends and what was lost since the last batch.

A stream follows a queue by its offsets. An offset alone does not tell which queue it belongs to: a topic that was
deleted and made again counts from 0. So the last message read is compared (offsets.MessageIdentity). If the comparison
shows another queue, this module gets a Restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gantry.model.message import MessageQueue
from spark.datasource.brokers.topicqueues import QueueBounds, TopicQueues, topic_broker_of
from spark.datasource.dataloss import NO_SUCH_TOPIC, Loss
from spark.datasource.stream.offsets import FIRST, MessageIdentity, StreamOffsets, StreamPosition

REMADE: Final = "the topic was deleted and made again, or the broker has a new store"
OLDER_COPY: Final = "the broker's store is an older copy, or lost its end"
REMADE_OR_OLDER: Final = f"{REMADE}; or {OLDER_COPY}"
REMOVED: Final = "they were removed before they were read"
DELETED: Final = "the topic was deleted from the broker"
SHRUNK: Final = "the topic has fewer queues"


@dataclass(frozen=True, slots=True)
class Restart:
    """A queue that is not the one that was read, or that no longer has the messages that were read from it.

    Attributes:
        next: The queue offset of the first unread message.
        reason: The event that changed the queue.
        found: The message in place of the last message read; None if there is none.
    """

    next: int
    reason: str
    found: MessageIdentity | None = None


@dataclass(slots=True)
class Evidence:
    """Answers about queues, in addition to their ends."""

    restarts: dict[MessageQueue, Restart] = field(default_factory=dict)
    hidden: dict[MessageQueue, QueueBounds] = field(default_factory=dict)
    """The queues that their topic no longer has, and the offsets that they still hold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The end of a batch, without the identities of its last messages, and the losses."""

    ends: StreamOffsets
    losses: list[Loss]


def plan_batch(
    starts: Mapping[MessageQueue, StreamPosition],
    found: TopicQueues,
    evidence: Evidence,
    target: Mapping[MessageQueue, int] | None,
    *,
    rows_max: int | None,
    turn: int = 0,
) -> Plan:
    """Decide where the next batch ends in each queue.

    Args:
        starts: The positions at which the batch begins, from `without_batch`. Missing queues are new.
        found: The queues and their ends, as the brokers report them now.
        evidence: Further answers of the brokers about these queues.
        target: The offsets at which reading stops; queues that are not in it are not read. None for no limit.
        rows_max: The limit for the messages of the batch; None for no limit.
        turn: The number of the batch. It decides which queues get the remainder of `rows_max`.
    """
    ends, losses = _kept(starts, found, evidence)
    available: dict[MessageQueue, QueueBounds] = {}
    for queue, held in sorted(found.ends.items()):
        limit = held.end if target is None else min(held.end, target.get(queue, -1))
        if limit < 0:
            continue
        at = starts.get(queue)
        if topic_broker_of(queue) in found.stand_ins and not _is_within(at, held):
            continue  # The slave lags behind, or keeps less. Wait for the master's answer.
        begin, loss = _begin(queue, at, held, evidence.restarts.get(queue))
        if loss is not None:
            losses.append(loss)
        # Note the position even if there is nothing to read. Then messages that arrive later do not count as old.
        is_moved = at is None or loss is not None
        ends[queue] = StreamPosition(begin) if at is None or is_moved else replace(at, is_gone=False)
        if begin < limit:
            available[queue] = QueueBounds(begin, limit)
    shares = fair_shares({queue: held.end - held.first for queue, held in available.items()}, rows_max, turn=turn)
    for queue, held in available.items():
        if shares[queue]:
            ends[queue] = StreamPosition(held.first + shares[queue], first=held.first)
    return Plan(ends, losses)


def fair_shares(
    available: Mapping[MessageQueue, int], rows_max: int | None, *, turn: int = 0
) -> dict[MessageQueue, int]:
    """Divide a limit among queues. All get the same share; if some need less, the others get the rest.

    A remainder that can't be divided goes to some of the queues, and at the next turn to others. So no queue waits for
    ever if there are more queues than messages allowed.
    """
    if rows_max is None or sum(available.values()) <= rows_max:
        return dict(available)
    shares: dict[MessageQueue, int] = {}
    left, waiting = rows_max, sorted(available, key=lambda queue: (available[queue], queue))
    while waiting:
        share = left // len(waiting)
        if available[waiting[0]] > share:
            break
        shares[waiting[0]] = available[waiting[0]]
        left -= available[waiting.pop(0)]
    share, rest = divmod(left, len(waiting)) if waiting else (0, 0)
    waiting.sort()
    for position, queue in enumerate(waiting):
        shares[queue] = share + ((position - turn * max(rest, 1)) % len(waiting) < rest)
    return shares


def explain(
    at: StreamPosition,
    held: QueueBounds,
    first: MessageIdentity | None,
    found: MessageIdentity | None,
    stored_later: int | None,
) -> Restart:
    """Return where reading continues in a queue that no longer has the messages that were read from it.

    Args:
        at: The position of the stream.
        held: The offsets that the queue holds.
        first: The first message in the queue; None if there is none or it is unknown.
        found: The message in place of the last message read; None if there is none.
        stored_later: The first queue offset whose message was stored after the last message read; None if unknown.
    """
    if at.last is None or first is None:
        return Restart(held.first, REMADE_OR_OLDER, found)
    if is_recreated(at.last, first):
        return Restart(held.first, REMADE, found)
    return Restart(
        held.end if stored_later is None else min(max(stored_later, held.first), held.end), OLDER_COPY, found
    )


def is_recreated(last: MessageIdentity, first: MessageIdentity) -> bool:
    """Return whether a queue began after the last message read, so that all of its messages are newer.

    A CommitLog only grows, and so do the times in it. A new store begins at offset 0 again, at a later time.
    """
    times = (last.stored_at_ms, first.stored_at_ms)
    is_later = times[0] is not None and times[1] is not None and times[1] > times[0]
    return first.physical_offset > last.physical_offset or is_later


def _kept(
    starts: Mapping[MessageQueue, StreamPosition], found: TopicQueues, evidence: Evidence
) -> tuple[StreamOffsets, list[Loss]]:
    """Return the positions that stay, and the losses of queues that are gone."""
    ends: StreamOffsets = {}
    losses: list[Loss] = []
    for queue, at in sorted(starts.items(), key=lambda item: item[0]):
        if topic_broker_of(queue) in found.gone:
            # The messages went with the topic. If the topic is made again, reading begins at its first message.
            if not at.is_gone:
                losses.append(Loss(queue, at.next, NO_SUCH_TOPIC, None, DELETED))
            continue
        ends[queue] = at
        if queue in evidence.hidden and not at.is_gone:
            # The messages stay, and so does the position: the queue may come back.
            held = evidence.hidden[queue]
            ends[queue] = replace(at, is_gone=True)
            seen = f"a queue that can't be read any more and holds [{held.first}, {held.end})"
            if held.end > at.begin or held.end < at.next:
                losses.append(Loss(queue, at.begin, seen, held.end if held.end > at.begin else None, SHRUNK))
    return ends, losses


def _is_within(at: StreamPosition | None, held: QueueBounds) -> bool:
    return held.first <= (FIRST if at is None else at.next) <= held.end


def _begin(
    queue: MessageQueue, at: StreamPosition | None, held: QueueBounds, restart: Restart | None
) -> tuple[int, Loss | None]:
    """Return where reading continues in a queue, and the loss before that offset, if any."""
    position = FIRST if at is None else at.next
    if at is not None and restart is None and position > held.end:
        restart = Restart(held.first, REMADE_OR_OLDER)
    if restart is not None:
        seen = f"a queue that holds [{held.first}, {held.end})"
        if at is not None and at.last is not None and restart.found is not None:
            seen += f", with {restart.found} before that offset instead of {at.last}"
        begin = min(max(restart.next, held.first), held.end)
        return begin, Loss(queue, position, seen, None, restart.reason, begin)
    begin = position if at is None else at.begin
    if begin < held.first:
        return held.first, Loss(queue, begin, f"offset {held.first} as the first", held.first, REMOVED, held.first)
    return begin, None
