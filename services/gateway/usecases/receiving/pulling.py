"""Pulls of a group: messages of a topic, each with a receipt.

The brokers keep everything: the position of the group, and which messages are out until when. So a gateway has no state
that a pull, or an ack of its receipts, needs.

A pull pops from the brokers of the topic in turn, without waiting, until one has messages. If none has, it waits at all
of them at once (wakes.py), which takes no messages, and pops from the one that wakes it. A client may leave while a pop
is under way; then its messages become visible again at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gantry.client.consumer.pop import MESSAGES_MAX, PopConsumer
from gantry.client.consumer.popanswer import PoppedRecords
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerUnavailableError, ClientError, NoAnswerError
from gantry.model.address import unpack_host
from gantry.model.compression import decompress
from gantry.model.errors import CorruptRecordError
from gantry.model.group import SubscriptionData
from gantry.model.messageid import encode_stored_id
from gantry.model.names import check_group, is_system_group
from gantry.model.popreceipt import PopPart
from gantry.model.record import RecordScan, decode_record, parse_head
from gantry.model.sysflag import COMPRESSED
from gantry.model.topic import Perm
from gantry.runtime.clock import Clock
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.auth.receipts import Receipts, TopicPart
from services.gateway.errors import REFUSED_BY_BROKER, ProblemError, reserved_name
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.reading.fairgate import FairGate
from services.gateway.usecases.reading.read import FETCHES_AT_ONCE, INFLATED_BYTES_AT_ONCE, Caller, QueueReader
from services.gateway.usecases.reading.results import DamagedRecord
from services.gateway.usecases.receiving.silence import Silence
from services.gateway.usecases.receiving.turns import Turns, in_turn
from services.gateway.usecases.receiving.wakes import Place, Wakes

# A pull pops again for more messages only while its answer is smaller than this.
POPPED_BYTES_MAX: Final = 1024 * 1024
# Decompressed bodies that a pull keeps in memory. A body can be a thousand times as large as in the record.
BODIES_BYTES_MAX: Final = 8 * 1024 * 1024
# A pop that finds nothing after a wake is followed by a pause, which doubles: the messages may be those of a queue that
# another client of the group holds.
PAUSE_MS_MIN: Final = 5
PAUSE_MS_MAX: Final = 500

log = logger("gateway.pulling")

# This takes half the time of a call of the class, which passes every field by name again.
_new_tuple = tuple.__new__


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull.

    Attributes:
        group: The group.
        subscription: The topic, and the messages of it that are wanted.
        messages_max: Largest number of messages.
        wait_ms: Time to wait if there is no message.
        invisible_ms: Time for which the messages are hidden from others.
        is_orderly: Whether a queue gives no messages while earlier ones are not acked.
        attempt_id: Name of the pull; one with the same name gets the same messages again.
    """

    group: str
    subscription: SubscriptionData
    messages_max: int
    wait_ms: int
    invisible_ms: int
    is_orderly: bool = False
    attempt_id: str | None = None


class PulledMessage(NamedTuple):
    """A message with its receipt.

    Attributes:
        data: Bytes with its record.
        record: The record in them, with the number of times that the group got the message before.
        receipt: The receipt.
        body: The decompressed body, or None in a large result; see `whole_body`.
    """

    data: bytes
    record: RecordScan
    receipt: str
    body: bytes | None

    def whole_body(self) -> bytes:
        """Return the body; decompress it again if the result is too large to keep it."""
        if self.body is not None:
            return self.body
        _, _, _, _, flag, _, _, _, _, _, start, end, _, _, _ = self.record
        return decompress(self.data[start:end], flag)


@dataclass(slots=True)
class Pulled:
    """The result of a pull.

    Attributes:
        broker: The broker whose messages they are; empty if there are none.
        messages: The messages.
        damaged: The records whose content is damaged. They have no receipt.
        inflated_bytes: Size of the bodies that the result had to decompress.
    """

    broker: str = ""
    messages: list[PulledMessage] = field(default_factory=list)
    damaged: list[DamagedRecord] = field(default_factory=list)
    inflated_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether bodies are missing, so that messages have to be written one after another."""
        return self.inflated_bytes > BODIES_BYTES_MAX


class Pulling:
    """Pulls for groups. The caller checks the rights."""

    def __init__(
        self,
        engine: ClientEngine,
        reader: QueueReader,
        metrics: GatewayMetrics,
        receipt_key: ReceiptKey,
        *,
        clock: Clock,
        is_stopping: Callable[[], bool],
        on_pull: Callable[[str, SubscriptionData], None],
    ) -> None:
        """Create the pulls; `on_pull` is called with group and subscription of each pull that a broker answers."""
        self._on_pull = on_pull
        self._engine = engine
        self._reader = reader
        self._metrics = metrics
        self._receipt_key = receipt_key
        self._clock = clock
        self._is_stopping = is_stopping
        self._turns = Turns()
        self._wakes = Wakes(engine)
        self._silence = Silence(engine)
        self._returns = TaskSet("returns", _failed)
        # Each broker has a gate of its own, as in reads: a broker that hangs blocks no pull of another.
        self._gates: dict[str, FairGate] = {}

    @asynccontextmanager
    async def pull(self, wanted: Pull, caller: Caller) -> AsyncIterator[Pulled]:
        """Pull messages. The caller writes its answer within the block.

        Raises:
            InvalidNameError: A name is not valid.
            ProblemError: 403: the group belongs to the system, or may not consume. 404: the topic or group does not
                exist. 429: the caller has too many waiting requests. 503, 504: no broker answers, or the key of
                receipts is not known yet.
            ClientError: A broker rejects the pop.
        """
        group, topic = wanted.group, wanted.subscription.topic
        check_group(group)
        if is_system_group(group):
            raise reserved_name("group", group)
        key = self._receipt_key.require()
        brokers = await self._brokers_of(topic)
        turn, woken_by, pause_ms = self._turns.take(group, topic), None, PAUSE_MS_MIN
        deadline_ms = self._clock.monotonic_ms() + wanted.wait_ms
        async with self._reader.explained(topic):
            # With one broker, the pop itself is repeated.
            repeated = await self._repeat(wanted, brokers) if wanted.attempt_id and len(brokers) > 1 else None
            if repeated is not None:
                yield await self._result(key, wanted, repeated[0], [repeated[1]])
                return
            while True:
                failures: list[ClientError] = []
                for broker in self._silence.last(in_turn(brokers, turn, woken_by)):
                    async with self._gates.setdefault(broker, FairGate(FETCHES_AT_ONCE)).enter(caller.key_id):
                        caller.require_presence()
                        caller.require_room()
                        skipped = self._silence.skipped(broker, brokers, group, wanted.subscription)
                        if skipped is not None:
                            failures.append(skipped)
                            continue
                        popped = await self._pop(wanted, broker, failures)
                        if popped:
                            yield await self._result(key, wanted, broker, popped)
                            return
                if len(failures) == len(brokers):
                    raise failures[0]
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0 or self._is_stopping():
                    break
                with caller.waiting():
                    if woken_by is not None:
                        await asyncio.sleep(min(pause_ms, left_ms) / 1_000)
                        pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
                    woken_by = await self._wait(wanted, brokers, deadline_ms)
            # Thousands of waits that began together end together, so their answers take turns.
            await caller.take_turn()
            yield Pulled()

    async def close(self) -> None:
        """Cancel all waits at brokers; the caller makes sure that no client waits."""
        await self._wakes.close()
        await self._silence.close()
        await self._returns.cancel()

    async def _brokers_of(self, topic: str) -> Sequence[str]:
        """Return the brokers with readable queues of a topic. Raises ProblemError (403, 404, 503)."""
        route = await self._reader.route(topic)
        brokers = [data.broker_name for data in route.queue_datas if data.perm & Perm.READ and data.read_queue_nums]
        if not brokers:
            raise ProblemError(REFUSED_BY_BROKER, f"topic: no queue of {topic} is readable", field="/topic")
        return brokers

    async def _wait(self, wanted: Pull, brokers: Sequence[str], deadline_ms: int) -> str | None:
        filter_ = wanted.subscription
        places = [
            Place(broker, wanted.group, filter_.topic, filter_.expression_type, filter_.sub_string, wanted.is_orderly)
            for broker in brokers
        ]
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0 and not self._is_stopping():
            woken_by = await self._wakes.wait(places, wanted.subscription, min(left_ms, 1_000))
            if woken_by is not None:
                self._silence.note_answer(woken_by)
                return woken_by
        return None

    async def _repeat(self, wanted: Pull, brokers: Sequence[str]) -> tuple[str, PoppedRecords] | None:
        """Return the messages that a pull of this name has got before, and their broker, if there are any.

        A broker that does not answer now may have some; they become visible when their time is over.
        """
        group, topic, attempt_id = wanted.group, wanted.subscription.topic, wanted.attempt_id
        popper, began_ms, skipped = PopConsumer(self._engine, group), self._clock.monotonic_ms(), self._silence.skipped
        brokers = [name for name in brokers if skipped(name, brokers, group, wanted.subscription) is None]
        pops = [
            popper.pop_records(
                topic,
                broker,
                invisible_ms=wanted.invisible_ms,
                order=wanted.is_orderly,
                attempt_id=attempt_id,
                replay_only=True,
            )
            for broker in brokers
        ]
        for broker, result in zip(brokers, await asyncio.gather(*pops, return_exceptions=True), strict=True):
            if not isinstance(result, BaseException):
                _, popped = result
                if popped.records:
                    return broker, popped
            elif isinstance(result, NoAnswerError | BrokerUnavailableError):
                self._silence.note_failure(broker, result, began_ms)
            else:
                raise result
        return None

    async def _pop(self, wanted: Pull, broker: str, failures: list[ClientError]) -> list[PoppedRecords]:
        """Return messages of one broker. If the task is cancelled meanwhile, they become visible again."""
        popping, began_ms = asyncio.ensure_future(self._pop_all(wanted, broker)), self._clock.monotonic_ms()
        try:
            popped = await asyncio.shield(popping)
        except asyncio.CancelledError:
            self._returns.spawn(self._give_back(wanted, popping))
            raise
        except (NoAnswerError, BrokerUnavailableError) as error:
            failures.append(error)
            self._silence.note_failure(broker, error, began_ms)
            return []
        self._silence.note_answer(broker)
        return popped

    async def _pop_all(self, wanted: Pull, broker: str) -> list[PoppedRecords]:
        popper, topic = PopConsumer(self._engine, wanted.group), wanted.subscription.topic
        popped: list[PoppedRecords] = []
        count = size = 0
        while (left := wanted.messages_max - count) > 0 and size < POPPED_BYTES_MAX:
            asked = min(left, MESSAGES_MAX)
            try:
                _, result = await popper.pop_records(
                    topic,
                    broker,
                    max_messages=asked,
                    invisible_ms=wanted.invisible_ms,
                    expression=wanted.subscription,
                    order=wanted.is_orderly,
                    attempt_id=wanted.attempt_id,
                )
            except ClientError:
                if not popped:
                    raise
                break
            self._on_pull(wanted.group, wanted.subscription)
            if result.records:
                popped.append(result)
            count += len(result.records)
            size += len(result.data)
            # Under one attempt id there is one pop. Another one would get the same messages.
            if len(result.records) < asked or wanted.attempt_id is not None:
                break
        return popped

    async def _give_back(self, wanted: Pull, popping: "asyncio.Future[list[PoppedRecords]]") -> None:
        """Make the messages of a pop visible again whose client has left."""
        try:
            popped = await popping
        except ClientError:
            return
        if wanted.attempt_id is not None:
            return  # The client may pull again under the same name, and expects these messages.
        popper, topic = PopConsumer(self._engine, wanted.group), wanted.subscription.topic
        for record in (record for part in popped for record in part.records):
            try:
                await popper.change_invisible_time(topic, record.receipt, 0)
            except ClientError as error:
                # The message becomes visible by itself at the end of its time.
                log.debug("a message whose client has left stays invisible", group=wanted.group, error=str(error))

    async def _result(self, key: bytes, wanted: Pull, broker: str, popped: list[PoppedRecords]) -> Pulled:
        """Return the messages of pops. If the task is cancelled meanwhile, they become visible again."""
        pulled = Pulled(broker)
        receipts = Receipts(key, wanted.group)
        try:
            for part in popped:
                for _ in take_popped(pulled, part, receipts, wanted.subscription.topic):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            taken: asyncio.Future[list[PoppedRecords]] = asyncio.get_running_loop().create_future()
            taken.set_result(popped)
            self._returns.spawn(self._give_back(wanted, taken))
            raise
        self._metrics.read_messages += len(pulled.messages)
        self._metrics.damaged_records += len(pulled.damaged)
        return pulled


def take_popped(pulled: Pulled, popped: PoppedRecords, receipts: Receipts, topic: str) -> Iterator[None]:
    """Add the messages of a pop to the result of a pull, with their receipts; pure.

    Every body is checked, so that a damaged one is known before the first byte of the answer. Only the first
    BODIES_BYTES_MAX of decompressed bodies stay in memory. Yield after each MiB of them, so that the caller lets others
    go on.
    """
    inflated_bytes = 0
    data, sign, add = popped.data, receipts.sign_one, pulled.messages.append
    pop: PopPart | None = None
    for at, record, part in popped.records:
        _, _, offset, _, flag, _, _, _, _, times, start, end, _, _, is_good = record
        body: bytes | None = data[start:end]
        if not is_good or flag & COMPRESSED:
            try:
                body = _checked_body(data, at)
            except CorruptRecordError as error:
                pulled.damaged.append(DamagedRecord(offset, _stored_id(data, at), error.reason))
                continue
            if flag & COMPRESSED:
                inflated_bytes += len(body)
                pulled.inflated_bytes += len(body)
                if pulled.is_large:
                    body = None
            if inflated_bytes >= INFLATED_BYTES_AT_ONCE:
                inflated_bytes = 0
                yield
        if part is not pop:  # The messages of one queue follow each other.
            pop, shared = part, TopicPart(topic, part)
        add(_new_tuple(PulledMessage, (data, record, sign(shared, offset, times), body)))


def _checked_body(data: bytes, at: int) -> bytes:
    """Return the decompressed body of a record. Raises CorruptRecordError if it or the checksum is wrong."""
    message = decode_record(data, at)
    if not message.crc.is_good:
        raise CorruptRecordError(f"checksum: {message.crc.value}", at)
    return message.inflated_body()


def _stored_id(data: bytes, at: int) -> str:
    head = parse_head(data, at)
    return encode_stored_id(unpack_host(head.store_host), head.physical_offset)


def _failed(error: BaseException) -> None:
    log.error("a return of messages failed with an internal error", exc_info=error)
