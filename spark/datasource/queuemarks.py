"""Which messages stand where in queues, asked of their masters: hundreds of places in a request (900002).

Brokers other than Gantry's do not know the request, so of their queues there are no marks. A broker that does not
answer is told apart: nothing follows from its silence.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gantry.client.backlog import Backlog, Head, HeadQuery
from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerUnavailableError, ClientError, NotServedError
from gantry.model.message import MessageQueue
from spark.datasource.streamoffsets import Mark, QueueAt
from spark.datasource.streamplan import Restart, explain
from spark.datasource.topicqueues import Ends, TopicQueues, place_of

Question = tuple[MessageQueue, int]
"""A queue, and the queue offset about which a broker is asked."""
Checked = dict[MessageQueue, tuple[QueueAt, Ends]]
"""Where the last message read was found in its place, and what the queue held then."""


@dataclass(slots=True)
class Answers:
    """The answers of brokers; questions that they do not know are missing."""

    heads: dict[Question, Head] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    """Brokers that did not answer, and what was said instead."""

    def mark(self, queue: MessageQueue, offset: int) -> Mark | None:
        """Return the message at an offset; None: there is none, or it is not known."""
        head = self.heads.get((queue, offset))
        return None if head is None or head.queue_offset != offset else _mark(head)

    def held(self, queue: MessageQueue, offset: int) -> Ends | None:
        """Return what the queue of a question holds; None: the broker does not say."""
        head = self.heads.get((queue, offset))
        if head is None or head.min_offset is None or head.max_offset is None:
            return None
        return Ends(head.min_offset, head.max_offset)


async def ask_messages(engine: ClientEngine, asked: Iterable[Question]) -> Answers:
    """Ask what stands at queue offsets. Each broker answers in the order of its questions."""
    answers = Answers()
    by_broker: dict[str, dict[Question, None]] = {}
    for question in asked:
        by_broker.setdefault(question[0].broker_name, {})[question] = None

    async def ask(broker: str, asked: list[Question]) -> None:
        queries = [HeadQuery(queue.topic, queue.queue_id, offset) for queue, offset in asked]
        try:
            answers.heads.update(zip(asked, await Backlog(engine).heads(broker, queries), strict=True))
        except NotServedError:
            pass
        except ClientError as error:
            answers.away[broker] = str(error)

    await asyncio.gather(*(ask(broker, list(questions)) for broker, questions in by_broker.items()))
    return answers


def questions(
    starts: Mapping[MessageQueue, QueueAt],
    found: TopicQueues,
    ends: Mapping[MessageQueue, QueueAt],
    checked: Checked,
) -> Iterator[Question]:
    """Yield what is to be asked for a batch: first of its ends, so that a queue made again since shows at its start."""
    masters = {queue: held for queue, held in found.ends.items() if place_of(queue) not in found.stand_ins}
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


def find_suspects(starts: Mapping[MessageQueue, QueueAt], found: TopicQueues, answers: Answers) -> set[MessageQueue]:
    """Return the queues that end before the place in them, or have another message in place of the last one read."""
    suspects = set()
    for queue, held in found.ends.items():
        at = starts.get(queue)
        if at is None or place_of(queue) in found.stand_ins:
            continue
        by_now, mark = answers.held(queue, at.next - 1), answers.mark(queue, at.next - 1)
        is_other = mark is not None and at.last is not None and not mark.is_same(at.last)
        if is_other or at.next > held.end or (by_now is not None and at.next > by_now.end):
            suspects.add(queue)
    return suspects


def find_hidden(
    starts: Mapping[MessageQueue, QueueAt], found: TopicQueues, answers: Answers
) -> dict[MessageQueue, Ends]:
    """Return the queues that their topic no longer has, and what they hold."""
    return {
        queue: answers.held(queue, at.next) or Ends(0, 0)
        for queue, at in starts.items()
        if _is_left_out(queue, at, found) and (queue, at.next) in answers.heads
    }


async def explain_all(
    engine: ClientEngine,
    suspects: Iterable[MessageQueue],
    starts: Mapping[MessageQueue, QueueAt],
    found: TopicQueues,
    answers: Answers,
) -> dict[MessageQueue, Restart]:
    """Say where reading goes on in queues that no longer have what was read of them.

    Args:
        engine: A running one.
        suspects: The queues (`find_suspects`).
        starts: How far the stream is in each.
        found: The ends of each queue.
        answers: The messages that now stand where the last message read stood.

    Raises:
        ClientError: A broker does not answer.
    """
    queues = sorted(suspects)
    firsts = await ask_messages(engine, [(queue, found.ends[queue].first) for queue in queues])
    if firsts.away:
        raise BrokerUnavailableError(min(firsts.away))
    restarts = {}
    for queue in queues:
        at, later = starts[queue], None
        head = firsts.heads.get((queue, found.ends[queue].first))
        if at.last is not None and at.last.stored_at_ms is not None:
            later = await Offsets(engine).search_offset(queue, at.last.stored_at_ms + 1)
        mark = answers.mark(queue, at.next - 1)
        restarts[queue] = explain(at, found.ends[queue], None if head is None else _mark(head), mark, later)
    return restarts


def _is_left_out(queue: MessageQueue, at: QueueAt, found: TopicQueues) -> bool:
    """Say whether a master has the topic, and no longer lets the queue be read."""
    readable = found.readable.get(place_of(queue))
    return readable is not None and queue.queue_id not in readable and not at.is_gone


def _mark(head: Head) -> Mark | None:
    return None if head.physical_offset is None else Mark(head.physical_offset, head.stored_at_ms)
