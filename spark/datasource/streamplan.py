"""Where the next batch of a stream ends, and what was lost since the last one: decided from what brokers said.

A queue is followed by its offsets, and an offset alone does not say which queue it belongs to: a topic that was deleted
and made again counts from 0. So the last message read is compared (streamoffsets.Mark), and what the comparison showed
comes in here as a Restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gantry.model.message import MessageQueue
from spark.datasource.dataloss import NO_SUCH_TOPIC, Loss
from spark.datasource.streamoffsets import FIRST, Mark, QueueAt, StreamOffsets
from spark.datasource.topicqueues import Ends, TopicQueues, place_of

REMADE: Final = "the topic was deleted and made again, or the broker has a new store"
OLDER_COPY: Final = "the broker's store is an older copy, or lost its end"
REMADE_OR_OLDER: Final = f"{REMADE}; or {OLDER_COPY}"
REMOVED: Final = "they were removed before they were read"
DELETED: Final = "the topic was deleted from the broker"
SHRUNK: Final = "the topic has fewer queues"


@dataclass(frozen=True, slots=True)
class Restart:
    """A queue that is not the one which was read, or no longer has what was read of it.

    Attributes:
        next: The queue offset of the first message that was not read.
        reason: The event that changed the queue.
        found: The message that stands where the last one read stood; None: none does.
    """

    next: int
    reason: str
    found: Mark | None = None


@dataclass(slots=True)
class Evidence:
    """The answers about queues beyond their ends."""

    restarts: dict[MessageQueue, Restart] = field(default_factory=dict)
    hidden: dict[MessageQueue, Ends] = field(default_factory=dict)
    """Queues that their topic no longer has, and what they hold all the same."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a batch ends, without the marks of its last messages, and what is lost."""

    ends: StreamOffsets
    losses: list[Loss]


def plan_batch(
    starts: Mapping[MessageQueue, QueueAt],
    found: TopicQueues,
    evidence: Evidence,
    target: Mapping[MessageQueue, int] | None,
    *,
    rows_max: int | None,
    turn: int = 0,
) -> Plan:
    """Decide where the next batch ends in each queue.

    Args:
        starts: The places where it begins, `without_batch`; queues that are missing are new.
        found: What the brokers say just now.
        evidence: What else they say of these queues.
        target: Beyond which nothing is read, and queues that are not in it not at all; None: no such end.
        rows_max: How many messages the batch may have; None: all there are.
        turn: Counts the batches, so that each queue is the first one once.
    """
    ends, losses = _kept(starts, found, evidence)
    available: dict[MessageQueue, Ends] = {}
    for queue, held in sorted(found.ends.items()):
        limit = held.end if target is None else min(held.end, target.get(queue, -1))
        if limit < 0:
            continue
        at = starts.get(queue)
        if place_of(queue) in found.stand_ins and not _is_within(at, held):
            continue  # A slave is behind, or keeps less: its master will tell.
        begin, loss = _begin(queue, at, held, evidence.restarts.get(queue))
        if loss is not None:
            losses.append(loss)
        # Even where there is nothing to read: the place is then known, and what comes is not taken for old.
        is_moved = at is None or loss is not None
        ends[queue] = QueueAt(begin) if at is None or is_moved else replace(at, is_gone=False)
        if begin < limit:
            available[queue] = Ends(begin, limit)
    shares = fair_shares({queue: held.end - held.first for queue, held in available.items()}, rows_max, turn=turn)
    for queue, held in available.items():
        if shares[queue]:
            ends[queue] = QueueAt(held.first + shares[queue], first=held.first)
    return Plan(ends, losses)


def fair_shares(
    available: Mapping[MessageQueue, int], rows_max: int | None, *, turn: int = 0
) -> dict[MessageQueue, int]:
    """Split a limit over queues: everyone gets the same, and what some don't need the others get.

    What can't be split evenly goes to some of them, to others at the next turn, so that with more queues than messages
    allowed none waits for ever.
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
    for place, queue in enumerate(waiting):
        shares[queue] = share + ((place - turn * max(rest, 1)) % len(waiting) < rest)
    return shares


def explain(at: QueueAt, held: Ends, first: Mark | None, found: Mark | None, stored_later: int | None) -> Restart:
    """Say where reading goes on in a queue that no longer has what was read of it.

    Args:
        at: How far the stream is.
        held: What the queue holds.
        first: The first message it holds; None: none, or not known.
        found: The message that stands where the last one read stood; None: none does.
        stored_later: The first queue offset whose message was stored after the last one read; None: not known.
    """
    if at.last is None or first is None:
        return Restart(held.first, REMADE_OR_OLDER, found)
    if is_remade(at.last, first):
        return Restart(held.first, REMADE, found)
    return Restart(
        held.end if stored_later is None else min(max(stored_later, held.first), held.end), OLDER_COPY, found
    )


def is_remade(last: Mark, first: Mark) -> bool:
    """Say whether a queue began after the last message read: nothing that it holds was there then.

    A CommitLog only grows, and so do the times in it; a store made anew begins at 0 again, at a later time.
    """
    times = (last.stored_at_ms, first.stored_at_ms)
    is_later = times[0] is not None and times[1] is not None and times[1] > times[0]
    return first.physical_offset > last.physical_offset or is_later


# Inside


def _kept(
    starts: Mapping[MessageQueue, QueueAt], found: TopicQueues, evidence: Evidence
) -> tuple[StreamOffsets, list[Loss]]:
    """Return the places that stay, and what is lost with queues that went."""
    ends: StreamOffsets = {}
    losses: list[Loss] = []
    for queue, at in sorted(starts.items(), key=lambda item: item[0]):
        if place_of(queue) in found.gone:
            # The messages went with the topic, so that one made anew begins at its beginning.
            if not at.is_gone:
                losses.append(Loss(queue, at.next, NO_SUCH_TOPIC, None, DELETED))
            continue
        ends[queue] = at
        if queue in evidence.hidden and not at.is_gone:
            # The messages stay, and so does the place: the queue may come back.
            held = evidence.hidden[queue]
            ends[queue] = replace(at, is_gone=True)
            seen = f"a queue that can't be read any more and holds [{held.first}, {held.end})"
            if held.end != at.next:
                losses.append(Loss(queue, at.next, seen, held.end if held.end > at.next else None, SHRUNK))
    return ends, losses


def _is_within(at: QueueAt | None, held: Ends) -> bool:
    return held.first <= (FIRST if at is None else at.next) <= held.end


def _begin(queue: MessageQueue, at: QueueAt | None, held: Ends, restart: Restart | None) -> tuple[int, Loss | None]:
    """Return where reading goes on in a queue, and what is lost before that."""
    place = FIRST if at is None else at.next
    if at is not None and restart is None and place > held.end:
        restart = Restart(held.first, REMADE_OR_OLDER)
    if restart is not None:
        seen = f"a queue that holds [{held.first}, {held.end})"
        if at is not None and at.last is not None and restart.found is not None:
            seen += f", with {restart.found} before that offset instead of {at.last}"
        begin = min(max(restart.next, held.first), held.end)
        return begin, Loss(queue, place, seen, None, restart.reason, begin)
    if place < held.first:
        return held.first, Loss(queue, place, f"offset {held.first} as the first", held.first, REMOVED, held.first)
    return place, None
