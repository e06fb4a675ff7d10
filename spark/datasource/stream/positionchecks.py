"""Asks masters which messages are at given queue offsets: hundreds of offsets in a request (900002).

Brokers other than Gantry's do not know the request, so the messages of their queues have no identity. A broker that does not answer is
reported separately, because no conclusion follows from a missing answer.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gantry.client.backlog import Backlog, FirstUnconsumed, FirstUnconsumedQuery
from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerUnavailableError, ClientError, NotServedError
from gantry.model.message import MessageQueue
from spark.datasource.brokers.topicqueues import QueueBounds, TopicQueues, topic_broker_of
from spark.datasource.stream.offsets import MessageIdentity, StreamPosition
from spark.datasource.stream.plan import Restart, explain

QueuePosition = tuple[MessageQueue, int]
"""A queue, and the queue offset to ask about."""
CheckedPositions = dict[MessageQueue, tuple[StreamPosition, QueueBounds]]
"""The position whose last message was found in place, and the ends of the queue at that time, by queue."""


@dataclass(slots=True)
class MessageAnswers:
    """The answers of brokers. Positions on brokers that do not know the request are missing."""

    heads: dict[QueuePosition, FirstUnconsumed] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    """The brokers that did not answer, with the error."""

    def identity(self, queue: MessageQueue, offset: int) -> MessageIdentity | None:
        """Return the message at an offset; None if there is none or it is unknown."""
        head = self.heads.get((queue, offset))
        return None if head is None or head.queue_offset != offset else _identity_of(head)

    def held(self, queue: MessageQueue, offset: int) -> QueueBounds | None:
        """Return the ends of a question's queue; None if the broker does not report them."""
        head = self.heads.get((queue, offset))
        if head is None or head.min_offset is None or head.max_offset is None:
            return None
        return QueueBounds(head.min_offset, head.max_offset)


async def ask_messages(engine: ClientEngine, positions: Iterable[QueuePosition]) -> MessageAnswers:
    """Ask which messages are at queue offsets. Each broker answers in the order of its positions."""
    answers = MessageAnswers()
    by_broker: dict[str, dict[QueuePosition, None]] = {}
    for position in positions:
        by_broker.setdefault(position[0].broker_name, {})[position] = None

    async def ask(broker: str, positions: list[QueuePosition]) -> None:
        queries = [FirstUnconsumedQuery(queue.topic, queue.queue_id, offset) for queue, offset in positions]
        try:
            answers.heads.update(zip(positions, await Backlog(engine).first_unconsumed(broker, queries), strict=True))
        except NotServedError:
            pass
        except ClientError as error:
            answers.unreachable[broker] = str(error)

    await asyncio.gather(*(ask(broker, list(positions)) for broker, positions in by_broker.items()))
    return answers


def queried_positions(
    starts: Mapping[MessageQueue, StreamPosition],
    found: TopicQueues,
    ends: Mapping[MessageQueue, StreamPosition],
    checked: CheckedPositions,
) -> Iterator[QueuePosition]:
    """Yield the positions to ask about for a batch, first the ones about its ends.

    If a queue is made again in the meantime, the later question about its start shows that.
    """
    masters = {queue: held for queue, held in found.ends.items() if topic_broker_of(queue) not in found.stand_ins}
    for queue in masters:
        if queue in ends and ends[queue].first is not None:
            yield queue, ends[queue].next - 1
    for queue, held in masters.items():
        at = starts.get(queue)
        if at is None or at.last is None or not held.first < at.next <= held.end:
            continue
        if ends[queue].first is not None or checked.get(queue) != (at, held):
            yield queue, at.next - 1
    for queue, at in starts.items():
        if _is_left_out(queue, at, found):
            yield queue, at.next


def find_suspects(
    starts: Mapping[MessageQueue, StreamPosition], found: TopicQueues, answers: MessageAnswers
) -> set[MessageQueue]:
    """Return the queues that end before their position, or have another message in place of the last message read."""
    suspects = set()
    for queue, held in found.ends.items():
        at = starts.get(queue)
        if at is None or topic_broker_of(queue) in found.stand_ins:
            continue
        by_now, identity = answers.held(queue, at.next - 1), answers.identity(queue, at.next - 1)
        is_other = identity is not None and at.last is not None and not identity.is_same(at.last)
        if is_other or at.next > held.end or (by_now is not None and at.next > by_now.end):
            suspects.add(queue)
    return suspects


def find_hidden(
    starts: Mapping[MessageQueue, StreamPosition], found: TopicQueues, answers: MessageAnswers
) -> dict[MessageQueue, QueueBounds]:
    """Return the queues that their topic no longer has, with their ends."""
    return {
        queue: answers.held(queue, at.next) or QueueBounds(0, 0)
        for queue, at in starts.items()
        if _is_left_out(queue, at, found) and (queue, at.next) in answers.heads
    }


async def explain_all(
    engine: ClientEngine,
    suspects: Iterable[MessageQueue],
    starts: Mapping[MessageQueue, StreamPosition],
    found: TopicQueues,
    answers: MessageAnswers,
) -> dict[MessageQueue, Restart]:
    """Return where reading continues in queues that no longer have the messages that were read from them.

    Args:
        engine: A running engine.
        suspects: The queues from `find_suspects`.
        starts: The position of the stream in each queue.
        found: The ends of each queue.
        answers: The messages that are now in place of the last messages read.

    Raises:
        ClientError: A broker does not answer.
    """
    queues = sorted(suspects)
    firsts = await ask_messages(engine, [(queue, found.ends[queue].first) for queue in queues])
    if firsts.unreachable:
        raise BrokerUnavailableError(min(firsts.unreachable))
    restarts = {}
    for queue in queues:
        at, newer_offset = starts[queue], None
        head = firsts.heads.get((queue, found.ends[queue].first))
        if at.last is not None and at.last.stored_at_ms is not None:
            newer_offset = await Offsets(engine).search_offset(queue, at.last.stored_at_ms + 1)
        identity = answers.identity(queue, at.next - 1)
        restarts[queue] = explain(
            at, found.ends[queue], None if head is None else _identity_of(head), identity, newer_offset
        )
    return restarts


def _is_left_out(queue: MessageQueue, at: StreamPosition, found: TopicQueues) -> bool:
    """Return whether a master has the topic but no longer this queue, and the stream has not noted it yet."""
    readable = found.readable.get(topic_broker_of(queue))
    return readable is not None and queue.queue_id not in readable and not at.is_gone


def _identity_of(head: FirstUnconsumed) -> MessageIdentity | None:
    return None if head.physical_offset is None else MessageIdentity(head.physical_offset, head.stored_at_ms)
