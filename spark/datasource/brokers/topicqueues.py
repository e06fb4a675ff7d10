"""Finds the queues to read messages from, and the present ends of each queue.

One survey asks name servers for the topics and their routes, and each broker for the queues of each topic. The result
distinguishes queues that can't be asked about from queues that are gone. A broker that does not answer may hold
messages. A topic that its own broker does not know holds none.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry.client.admin import Admin
from gantry.client.backlog import Backlog
from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoRouteError
from gantry.model.message import MessageQueue
from gantry.model.names import is_system_topic
from gantry.model.route import BrokerData
from gantry.model.topic import Perm
from gantry.remoting.codes import ResponseCode
from spark.datasource.options import Options, Position, PositionKind
from spark.datasource.pushdown import Pushed

REQUESTS_MAX: Final = 64
"""The limit for requests in flight, over all brokers."""
CLOCK_SLACK_MS: Final = 60_000
"""If a broker's clock was set back, its store times are out of order, and a search by store time misses its target. So
the search looks for a time that is further out by this amount, and a filter then compares the times of the records."""

TopicBroker = tuple[str, str]
"""The names of a topic and of a broker that has it."""


class MissingMessagesError(Exception):
    """Raised if not all requested messages can be read, because no row could report that."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The offsets `[first, end)` that a queue holds."""

    first: int
    end: int


@dataclass(slots=True)
class TopicQueues:
    """The result of one survey."""

    ends: dict[MessageQueue, QueueBounds] = field(default_factory=dict)
    unknown: dict[TopicBroker, str] = field(default_factory=dict)
    """The topics on brokers that gave no answer, with the error."""
    gone: set[TopicBroker] = field(default_factory=set)
    """The topics whose broker itself reports that the topic does not exist there."""
    stand_ins: set[TopicBroker] = field(default_factory=set)
    """The topics on brokers for which a slave answered because the master is away. A slave may lag behind, and may keep
    less."""
    readable: dict[TopicBroker, frozenset[int]] = field(default_factory=dict)
    """The queues that consumers may read, as a master reports them."""

    def discard(self, broker: str, reason: str) -> None:
        """Discard the answers of a broker that does not answer any more."""
        for queue in [queue for queue in self.ends if queue.broker_name == broker]:
            del self.ends[queue]
            self.unknown[queue.topic, broker] = reason
        for pair in [pair for pair in self.readable if pair[1] == broker]:
            del self.readable[pair]
            self.unknown[pair] = reason


def topic_broker_of(queue: MessageQueue) -> TopicBroker:
    """Return the topic and the broker of a queue."""
    return queue.topic, queue.broker_name


async def find_queues(
    engine: ClientEngine,
    options: Options,
    pushed: Pushed,
    also: Iterable[TopicBroker] = (),
    expected: Iterable[TopicBroker] = (),
) -> TopicQueues:
    """Find all queues.

    Args:
        engine: A running engine.
        options: The options that select topics.
        pushed: The filters on topics, brokers and queues that Spark pushed down.
        also: Places to ask for even if name servers do not report them.
        expected: Places that are unknown if name servers do not know the broker.

    Raises:
        ClientError: No name server answers.
    """
    registered = (await engine.cluster_info()).broker_addr_table
    found = TopicQueues()
    at_once = asyncio.Semaphore(REQUESTS_MAX)
    for topic, broker in expected:
        if broker not in registered and pushed.passes("topic", topic) and pushed.passes("broker", broker):
            found.unknown[topic, broker] = f"broker {broker}: no name server knows it just now"
    names = await _topics(engine, options, pushed, registered)
    read_queues_of: dict[TopicBroker, int | None] = dict.fromkeys(also)

    async def ask_route(topic: str) -> None:
        async with at_once:
            try:
                route = await engine.route(topic, refresh=True)
            except NoRouteError as error:
                found.unknown[topic, ""] = str(error)
                return
        for data in route.queue_datas:
            if data.perm & Perm.READ:
                read_queues_of[topic, data.broker_name] = data.read_queue_nums

    async def ask_queues(topic: str, broker: str, read_queues: int | None) -> None:
        async with at_once:
            try:
                address, is_master = _address(registered, broker)
                states = await Backlog(engine).queue_states_at(address, topic)
            except BrokerError as error:
                # A slave that has just been started knows no topics yet.
                if error.code == ResponseCode.TOPIC_NOT_EXIST and is_master:
                    found.gone.add((topic, broker))
                else:
                    found.unknown[topic, broker] = str(error)
                return
            except (ClientError, MissingMessagesError) as error:
                found.unknown[topic, broker] = str(error)
                return
        if is_master:
            found.readable[topic, broker] = frozenset(state.queue_id for state in states if state.readable)
        else:
            found.stand_ins.add((topic, broker))
        for state in states:
            is_read = state.readable and (read_queues is None or state.queue_id < read_queues)
            if is_read and pushed.passes("queue_id", state.queue_id):
                found.ends[MessageQueue(topic, broker, state.queue_id)] = QueueBounds(
                    state.min_offset, state.max_offset
                )

    await asyncio.gather(*(ask_route(topic) for topic in names))
    wanted = [pair for pair in read_queues_of if pushed.passes("topic", pair[0]) and pushed.passes("broker", pair[1])]
    await asyncio.gather(*(ask_queues(*pair, read_queues_of[pair]) for pair in wanted))
    return found


async def positions(
    engine: ClientEngine, ends: Mapping[MessageQueue, QueueBounds], position: Position, *, slack_ms: int
) -> dict[MessageQueue, int]:
    """Return the offset of a position in each queue, limited to the queue's ends. A time is shifted by `slack_ms`.

    Raises:
        ClientError: A broker does not answer the search by store time.
    """
    offsets, at_once = Offsets(engine), asyncio.Semaphore(REQUESTS_MAX)

    async def find(queue: MessageQueue, held: QueueBounds) -> int:
        if position.where is PositionKind.EARLIEST:
            return held.first
        if position.where is PositionKind.LATEST:
            return held.end
        if position.where is PositionKind.OFFSET:
            return min(max(position.value, held.first), held.end)
        async with at_once:
            offset = await offsets.search_offset(queue, max(0, position.value + slack_ms))
        return min(max(offset, held.first), held.end)

    found = await asyncio.gather(*(find(queue, held) for queue, held in ends.items()))
    return dict(zip(ends, found, strict=True))


async def _topics(
    engine: ClientEngine, options: Options, pushed: Pushed, registered: Mapping[str, BrokerData]
) -> list[str]:
    if options.topics is not None:
        return [topic for topic in options.topics if pushed.passes("topic", topic)]
    sets = [(data.cluster, name) for name, data in registered.items()]
    return [
        topic
        for topic in sorted(await Admin(engine).topics())
        if pushed.passes("topic", topic)
        and (options.include_system or not any(is_system_topic(topic, cluster, name) for cluster, name in sets))
    ]


def _address(registered: Mapping[str, BrokerData], broker: str) -> tuple[str, bool]:
    """Return the address of the master or, while the master is away, of a slave; and whether it is the master's."""
    data = registered.get(broker)
    if data is None or not data.broker_addrs:
        raise MissingMessagesError(f"broker {broker}: is not registered with any name server just now")
    if data.master_address is not None:
        return data.master_address, True
    return data.broker_addrs[min(data.broker_addrs)], False
