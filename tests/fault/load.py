"""A load that writes a History: senders, readers and a committer on one broker, over the client library.

Every send names its queue, so that it has one attempt and its answer states what the broker did. Some sends are certain
to be refused; a broker with a short send queue refuses others because it is busy.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, Outcome, SendError
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.message import Message, MessageQueue, StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.fault.history import NEVER, Found, History

GROUP = "FAULT_READER"
SENDERS = 24
BODY_BYTES_MAX = 3_000
BATCH_MAX = 12
NO_SUCH_QUEUE = 99
PAUSE_AFTER_FAILURE_S = 0.02
STOP_TIMEOUT_S = 10.0
KEYS_LOOKED_UP = 5


def key_of(message_id: str) -> str:
    """Return the message key of a send."""
    return f"order-{message_id}"


@contextlib.asynccontextmanager
async def client(namesrv: str) -> AsyncIterator[ClientEngine]:
    """A running client engine; all cached routes go when it ends."""
    settings = ClientSettings(namesrv=(namesrv,), send_timeout_ms=8_000)
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


class Load:
    """Sends to, reads and commits on `queues` from `start` to `stop`.

    Attributes:
        acknowledged: Number of answers `stored`.
        errors: Errors of the sends that were not stored.
    """

    def __init__(
        self, engine: ClientEngine, history: History, rng: Rng, queues: Sequence[MessageQueue], *, pause_s: float = 0.0
    ) -> None:
        self._engine = engine
        self._history = history
        self._rng = rng
        self._queues = queues
        self._pause_s = pause_s
        self._producer = Producer(engine, "FAULT_SENDER")
        self._consumer = PullConsumer(engine, GROUP)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Condition()
        self.acknowledged = 0
        self.errors: set[str] = set()

    def start(self) -> None:
        """Start the load."""
        workers = [self._send(Rng(self._rng.below(1 << 60))) for _ in range(SENDERS)]
        workers += [self._read(queue) for queue in self._queues]
        self._tasks = [asyncio.ensure_future(worker) for worker in workers]

    async def stop(self) -> None:
        """Stop sending, and wait until every pending send has ended."""
        self._stopping = True
        done, pending = await asyncio.wait(self._tasks[:SENDERS], timeout=STOP_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in done:
            task.result()
        assert not pending, f"{len(pending)} sends without an end"

    async def reach(self, acknowledged: int, *, timeout_s: float = 20.0) -> None:
        """Wait until `more` further messages are stored."""
        goal = self.acknowledged + acknowledged
        async with asyncio.timeout(timeout_s), self._answered:
            await self._answered.wait_for(lambda: self.acknowledged >= goal)

    async def hear(self, *texts: str, timeout_s: float = 20.0) -> None:
        """Wait until a send is refused with one of these texts."""
        async with asyncio.timeout(timeout_s), self._answered:
            await self._answered.wait_for(lambda: any(text in error for text in texts for error in self.errors))

    async def _send(self, rng: Rng) -> None:
        while not self._stopping:
            kind = rng.below(20)
            if kind == 0:
                await self._one(rng, extra={PropertyName.INNER_NUM: "3"})
            elif kind == 1:
                await self._one(rng, queue_id=NO_SUCH_QUEUE)
            elif kind <= 3:
                await self._batch(rng)
            else:
                await self._one(rng)
            if self._pause_s:
                await asyncio.sleep(self._pause_s)

    async def _one(self, rng: Rng, *, queue_id: int | None = None, extra: dict[str, str] | None = None) -> None:
        queue = rng.choice(self._queues)
        if queue_id is not None:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        message = self._message(rng, queue, extra)
        send = self._history.begin(message.properties[PropertyName.UNIQ_KEY], queue, message.body)
        try:
            result = await self._producer.send(message, queue=queue)
        except SendError as error:
            self._history.failed(send, error.outcome)
            await self._failed(error)
        else:
            if result.outcome is Outcome.STORED:
                self._history.stored(send, result.queue, result.queue_offset)
                await self._count(1)
            else:
                self._history.failed(send, result.outcome)

    async def _batch(self, rng: Rng) -> None:
        queue = rng.choice(self._queues)
        messages = [self._message(rng, queue) for _ in range(1 + rng.below(BATCH_MAX))]
        sends = [self._history.begin(item.properties[PropertyName.UNIQ_KEY], queue, item.body) for item in messages]
        try:
            results = await self._producer.send_batch(queue.topic, messages, queue=queue)
        except SendError as error:
            for send in sends:
                self._history.failed(send, error.outcome)
            await self._failed(error)
            return
        for send, result in zip(sends, results, strict=True):
            if result.outcome is Outcome.STORED:
                self._history.stored(send, result.queue, result.queue_offset)
            else:
                self._history.failed(send, result.outcome)
        await self._count(len(sends))

    def _message(self, rng: Rng, queue: MessageQueue, extra: dict[str, str] | None = None) -> Message:
        key = self._engine.unique_keys.make()
        properties = {PropertyName.UNIQ_KEY: key, PropertyName.KEYS: key_of(key), PropertyName.TAGS: "fault"}
        return Message(queue.topic, rng.bytes(1 + rng.below(BODY_BYTES_MAX)), properties | (extra or {}))

    async def _count(self, stored: int) -> None:
        self.acknowledged += stored
        async with self._answered:
            self._answered.notify_all()

    async def _failed(self, error: SendError) -> None:
        self.errors.add(str(error))
        async with self._answered:
            self._answered.notify_all()
        # A dead broker's port refuses at once; a tight loop of retries would take all processor time.
        if error.retryable or error.outcome is Outcome.UNKNOWN:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def _read(self, queue: MessageQueue) -> None:
        offset = self._history.next_unseen(queue)
        while not self._stopping:
            try:
                result = await self._consumer.pull(queue, offset, suspend_ms=1_000)
                if result.status is PullStatus.FOUND:
                    for message in result.messages():
                        self._history.saw(_found(queue, message.queue_offset, message))
                if result.next_offset > offset:
                    offset = result.next_offset
                    self._history.commits[queue].add(offset)
                    await self._consumer.commit_offset(queue, offset)
            except ClientError:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)


async def read_all(engine: ClientEngine, queues: Sequence[MessageQueue]) -> list[Found]:
    """Read all messages that the queues have now."""
    consumer = PullConsumer(engine, "FAULT_CHECKER")
    found: list[Found] = []
    for queue in queues:
        offset, end = 0, await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset)
            assert result.next_offset > offset or result.status is PullStatus.FOUND, f"{queue} stands still at {offset}"
            if result.status is PullStatus.FOUND:
                found += [_found(queue, message.queue_offset, message) for message in result.messages()]
            offset = result.next_offset
    return found


async def assert_keys_found(engine: ClientEngine, history: History, rng: Rng, *, until: int = NEVER) -> None:
    """Assert that a sample of the stored messages is found by key, each message once."""
    stored = [send for send in history.sends.values() if send.outcome is Outcome.STORED and send.ended < until]
    for _ in range(KEYS_LOOKED_UP if stored else 0):
        send = rng.choice(stored)
        assert send.queue is not None, "what is stored has a place"
        messages = await Admin(engine).query_by_key(send.queue.topic, key_of(send.key))
        assert [message.queue_offset for message in messages] == [send.queue_offset], send


async def assert_commits(engine: ClientEngine, history: History, queues: Sequence[MessageQueue]) -> None:
    """Assert that each of a group's offsets is one that the group has committed, or missing."""
    consumer = PullConsumer(engine, GROUP)
    for queue in queues:
        offset = await consumer.committed_offset(queue)
        assert offset is None or offset in history.commits[queue], f"{queue}: {offset} was never committed"


def _found(queue: MessageQueue, offset: int, message: StoredMessage) -> Found:
    return Found(queue, offset, message.properties[PropertyName.UNIQ_KEY], message.inflated_body())
