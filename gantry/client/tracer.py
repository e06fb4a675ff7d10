"""Tracer: writes what a client's producers and consumers did to the topic RMQ_SYS_TRACE_TOPIC.

Theory of operation. Records wait in a queue of limited length, and one task sends them in batches. A send or a consumer
never waits for that: a record that finds the queue full is dropped and counted. So is a batch that can't be sent. Trace
data is an aid; the messages themselves don't depend on it.

Brokers have the topic only with the setting `traceTopicEnable`.

Concurrency: the event loop's thread.

Source: RocketMQ 5.3 AsyncTraceDispatcher, SendMessageTraceHookImpl and ConsumeMessageTraceHookImpl.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.producer import Producer
from gantry.client.sendrequest import BatchSendResult, EncodedSend, SendStatus
from gantry.model.batch import decode_batch
from gantry.model.errors import CorruptRecordError, InvalidIdError
from gantry.model.message import KEY_SEPARATOR, Message, StoredMessage, decode_properties, split_keys
from gantry.model.messageid import decode_stored_id
from gantry.model.names import SYSTEM_TOPICS, TRACE_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.tracedata import (
    CONSUMED,
    DELAYED_MESSAGE,
    FAILED,
    HALF_MESSAGE,
    NORMAL_MESSAGE,
    Pub,
    SubAfter,
    SubBefore,
    Written,
    encode_trace,
)
from gantry.runtime.telemetry import logger

log = logger("client.tracer")

GROUP: Final = "_INNER_TRACE_PRODUCER-gantry"
"""The producer group of trace messages, named like those of Java clients."""
WAITING_MAX: Final = 8_192
"""Limit of records that wait. Each takes about 500 bytes."""
BATCH_MAX: Final = 100
"""Limit of records in one message. A Java client sends 10; more cost a broker less."""
BATCH_BYTES_MAX: Final = 128_000
"""Limit of the size of one message, as in RocketMQ."""
KEYS_BYTES_MAX: Final = 16_384
"""Limit of the keys of one message: half of what the properties of a record may take."""
FLUSH_MS: Final = 1_000
"""Time that a record waits for others."""
SEND_TIMEOUT_MS: Final = 5_000
CLOSE_TIMEOUT_MS: Final = 500
"""Time in which `close` sends the records that wait."""
_WARN_INTERVAL_MS: Final = 60_000

_DELAYS: Final = frozenset(
    {
        PropertyName.DELAY,
        PropertyName.TIMER_DELAY_SEC,
        PropertyName.TIMER_DELAY_MS,
        PropertyName.TIMER_DELIVER_MS,
        "__STARTDELIVERTIME",
    }
)


class Consumption:
    """Messages that a consumer is processing; `ended` tells the result."""

    def __init__(self, tracer: "Tracer", group: str, messages: Sequence[StoredMessage], request_id: str) -> None:
        self._tracer = tracer
        self._group = group
        self._messages = messages
        self._request_id = request_id
        self._started_ms = tracer.clock.monotonic_ms()

    def ended(self, *, is_success: bool) -> None:
        """Note that the consumer has processed the messages."""
        clock = self._tracer.clock
        cost_ms = (clock.monotonic_ms() - self._started_ms) // max(1, len(self._messages))
        for message in self._messages:
            trace = SubAfter(
                request_id=self._request_id,
                message_id=message.message_id,
                cost_ms=cost_ms,
                is_success=is_success,
                keys=message.properties.get(PropertyName.KEYS),
                code=CONSUMED if is_success else FAILED,
                at_ms=clock.now_ms(),
                group=self._group,
            )
            self._tracer.add(trace)


class Tracer:
    """Writes trace data of an engine's producers, and of consumers that call `consuming`.

    Attributes:
        dropped: Number of records that were not written.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self.dropped = 0
        self.clock = engine.clock
        self._engine = engine
        self._producer = Producer(engine, GROUP)
        self._waiting: deque[Written] = deque()
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._warned_ms: int | None = None

    async def start(self) -> None:
        """Begin to note the sends of the engine's producers. The engine runs."""
        assert self._task is None, "started twice"
        self._engine.send_observer = self
        self._task = self._engine.tasks.spawn(self._run())

    async def close(self) -> None:
        """Send the records that wait, for a short time or until this is cancelled, and end. The engine still runs."""
        task, self._task = self._task, None
        if task is None:
            return
        self._engine.send_observer = None
        task.cancel()
        try:
            await asyncio.gather(task, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1_000):
                    while self._waiting:
                        await self._send_some()
        finally:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    def sent(self, group: str, prepared: EncodedSend, result: BatchSendResult, *, at_ms: int, cost_ms: int) -> None:
        """Note a send. Sends of trace data itself are left out, and brokers may ask for no trace data."""
        if prepared.topic in SYSTEM_TOPICS or not result.is_traced or result.region_id is None:
            return
        if len(self._waiting) + len(prepared.message_ids) > WAITING_MAX:
            # Reading the messages' properties again would cost time for nothing.
            self.dropped += len(prepared.message_ids)
            return
        for properties, size, message_id, stored_id in _messages(prepared, result):
            trace = Pub(
                at_ms=at_ms,
                region=result.region_id,
                group=group,
                topic=prepared.topic,
                message_id=message_id,
                tag=properties.get(PropertyName.TAGS),
                keys=properties.get(PropertyName.KEYS),
                store_host=_store_host(stored_id),
                body_bytes=size,
                cost_ms=cost_ms // len(prepared.message_ids),
                message_kind=_kind(properties),
                stored_id=stored_id,
                is_success=result.status is SendStatus.SEND_OK,
            )
            self.add(trace)

    def consuming(self, group: str, messages: Iterable[StoredMessage]) -> Consumption:
        """Note that a consumer of a group begins to process messages."""
        traced = [message for message in messages if message.properties.get(PropertyName.TRACE_ON) != "false"]
        request_id = self._engine.unique_keys.make()
        for message in traced:
            trace = SubBefore(
                at_ms=self.clock.now_ms(),
                region=message.properties.get(PropertyName.MSG_REGION),
                group=group,
                request_id=request_id,
                message_id=message.message_id,
                retry_times=message.reconsume_times,
                keys=message.properties.get(PropertyName.KEYS),
            )
            self.add(trace)
        return Consumption(self, group, traced, request_id)

    def add(self, trace: Written) -> None:
        """Add a record to those that wait, or drop it if too many wait."""
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(trace)
        self._has_work.set()

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            if len(self._waiting) < BATCH_MAX:
                await asyncio.sleep(FLUSH_MS / 1_000)
            self._has_work.clear()
            while self._waiting:
                await self._send_some()

    async def _send_some(self) -> None:
        """Send one message with the first records that wait."""
        body, keys, count = _take(self._waiting)
        try:
            message = Message(TRACE_TOPIC, body.encode(errors="replace"), {PropertyName.KEYS: keys})
            await self._producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
        except ClientError as error:
            self.dropped += count
            now_ms = self.clock.monotonic_ms()
            if self._warned_ms is None or now_ms - self._warned_ms >= _WARN_INTERVAL_MS:
                self._warned_ms = now_ms
                log.warning("trace data was not written", dropped=self.dropped, reason=str(error))


def _take(waiting: deque[Written]) -> tuple[str, str, int]:
    """Remove the first records; return the body and the keys of their message, and their number."""
    lines: list[str] = []
    keys: dict[str, None] = {}
    size = keys_size = 0
    while waiting and len(lines) < BATCH_MAX:
        trace = waiting[0]
        line = encode_trace(trace)
        names = [trace.message_id, *split_keys(trace.keys)]
        size += len(line.encode(errors="replace"))
        keys_size += sum(len(name.encode(errors="replace")) + 1 for name in names if name not in keys)
        if lines and (size > BATCH_BYTES_MAX or keys_size > KEYS_BYTES_MAX):
            break
        waiting.popleft()
        lines.append(line)
        # The id comes first, so that keys that are too long for a record never hide it.
        keys.update(dict.fromkeys(names if keys_size <= KEYS_BYTES_MAX else names[:1]))
    return "".join(lines), KEY_SEPARATOR.join(keys), len(lines)


def _messages(prepared: EncodedSend, result: BatchSendResult) -> Iterable[tuple[dict[str, str], int, str, str]]:
    """Yield properties, size, id and stored id of each message of a send."""
    ids = zip(prepared.message_ids, result.stored_ids, strict=True)
    if len(prepared.message_ids) == 1 and prepared.properties:
        properties = decode_properties(prepared.properties.encode(errors="replace"))
        return [(properties, len(prepared.body), *one) for one in ids]
    try:
        items = decode_batch(prepared.body)
    except CorruptRecordError:
        return []
    return [(decode_properties(item.properties), len(item.body), *one) for item, one in zip(items, ids, strict=True)]


def _kind(properties: dict[str, str]) -> int:
    if properties.get(PropertyName.TRAN_MSG) == "true":
        return HALF_MESSAGE
    return NORMAL_MESSAGE if _DELAYS.isdisjoint(properties) else DELAYED_MESSAGE


def _store_host(stored_id: str) -> str:
    try:
        return str(decode_stored_id(stored_id)[0])
    except InvalidIdError:
        return ""
