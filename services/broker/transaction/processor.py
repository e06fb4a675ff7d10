"""Transactional messages of the broker: the send hook, the requests 37, 323, 900003 and 900004, and the timer of the check.

A message with the property TRAN_MSG becomes a half message (messages.py) when it is sent. Its producer decides it with
END_TRANSACTION (decisions.py). The check asks about transactions that stay open (check.py).
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from gantry.model import sysflag
from gantry.model.errors import InvalidIdError, InvalidMessageError
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.messageid import decode_stored_id, encode_packed_stored_id
from gantry.model.names import PROPERTIES_BYTES_MAX, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies.transaction import KnownDecision
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BackpressureError, LocalProtocolError
from gantry.remoting.headers.transaction import (
    OPEN_TRANSACTIONS_MAX,
    CheckTransactionStateHeader,
    EndTransactionHeader,
    OpenTransactionsHeader,
    ResumeCheckHalfMessageHeader,
    TransactionDecisionHeader,
)
from gantry.runtime.digits import parse_digits
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker
from services.broker.durabilitywaiters import NotDurableError
from services.broker.metrics import Figure
from services.broker.newmessage import NewMessage, QuickPlace
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.persistence import NotSavedError
from services.broker.store.files.pages import NotInMemoryError
from services.broker.transaction.check import Check
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.decisions import COMMIT, ROLLBACK, Decisions
from services.broker.transaction.foundhalf import RecentHalves
from services.broker.transaction.listing import OpenListing
from services.broker.transaction.messages import (
    CHECK_GROUP,
    QUEUE_ID,
    check_record,
    copied,
    find_half_place,
    make_half,
    real_queue,
    transaction_key,
)
from services.broker.transaction.openhalves import OpenHalves
from services.broker.transaction.opwriter import OpWriter

log = logger("broker.transaction")

TICK_INTERVAL_MS: Final = 100
WAITING_MAX: Final = 10_000
"""Limit of decisions that wait until the start has read the half and op topic, or for the disk."""

# Room for the properties that a check adds, so that a half message can always be stored again.
_PROPERTIES_ROOM: Final = 256
_INT32_MAX = 2**31 - 1


class TransactionProcessor:
    """The feature: its hook, its handlers and its timer.

    Concurrency: the loop's thread.

    Attributes:
        half_count: Number of half messages since the start.
        refused_count: Number of decisions that were refused.
    """

    def __init__(self, broker: Broker) -> None:
        core, store = broker.core, broker.store
        self.half_count = 0
        self.refused_count = 0
        self._broker = broker
        self._decided = DecidedOffsets(self._progress(TRANS_HALF_TOPIC), self._progress(TRANS_OP_HALF_TOPIC))
        self._halves = OpenHalves()
        self._recent = RecentHalves()
        self._note_recent = self._recent.note
        self._ops = OpWriter(
            self._decided, store=store, waiters=core.waiters, clock=broker.clock, live_settings=core.live_settings
        )
        self._decisions = Decisions(
            self._decided,
            self._ops,
            self._halves,
            store=store,
            waiters=core.waiters,
            topics=broker.tables.topics,
            hooks=broker.send_hooks,
            special_properties=broker.special_properties,
            clock=broker.clock,
            live_settings=core.live_settings,
            windows=broker.windows,
        )
        self._check = Check(
            self._decided,
            self._ops,
            self._halves,
            store=store,
            waiters=core.waiters,
            cold=core.cold,
            turns=core.turns,
            clock=broker.clock,
            live_settings=core.live_settings,
            reserved_hours=broker.settings.file_reserved_time,
            ask=self._ask,
            commit=self._commit,
            create_topic=broker.create_topic,
            has_topic=lambda topic: broker.tables.topics.find(topic) is not None,
        )
        self._listing = OpenListing(
            self._decided,
            self._ops,
            self._halves,
            store=store,
            cold=core.cold,
            turns=core.turns,
            clock=broker.clock,
            live_settings=core.live_settings,
        )
        self._ran_at_ms = broker.clock.monotonic_ms()
        self._ready = asyncio.Event()
        self._waiting_count = 0
        self._tasks = TaskSet("transaction", self._failed)
        self._work: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return replying_to_refusals(
            {
                RequestCode.END_TRANSACTION: self.end,
                RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
                RequestCode.GANTRY_OPEN_TRANSACTIONS: self.list_open,
                RequestCode.GANTRY_TRANSACTION_DECISION: self.tell_decision,
            }
        )

    def figures(self) -> list[Figure]:
        """Return the metrics."""
        decisions, checks = self._decisions.counts, self._check.counts
        return [
            Figure("gantry_broker_half_messages", "Half messages stored.", lambda: self.half_count, True),
            Figure("rocketmq_commit_messages", "Transactions committed.", lambda: decisions.committed, True),
            Figure("rocketmq_rollback_messages", "Transactions rolled back.", lambda: decisions.rolled_back, True),
            Figure("gantry_broker_refused_decisions", "Decisions refused.", lambda: self.refused_count, True),
            Figure("gantry_broker_transaction_checks", "Checks sent to producers.", lambda: checks.asked, True),
            Figure(
                "gantry_broker_transaction_checks_unasked",
                "Checks without a live producer.",
                lambda: checks.unasked,
                True,
            ),
            Figure("gantry_broker_transactions_given_up", "Transactions given up.", lambda: checks.given_up, True),
            Figure(
                "gantry_broker_half_messages_skipped", "Half messages damaged or removed.", lambda: checks.skipped, True
            ),
        ]

    def store_as_half(self, message: NewMessage) -> None:
        """Turn a transactional message into its half message. Raises RefusalError. This is the send hook."""
        if message.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT:
            return  # A commit passes the hooks of the other features.
        message.sys_flag &= ~sysflag.TRANSACTION_MASK
        properties = message.properties
        if properties.get(PropertyName.TRAN_MSG, "").lower() != "true":
            return
        if message.reconsume_times > 0 and parse_digits(properties.get(PropertyName.DELAY, ""), _INT32_MAX):
            return  # A committed message that a consumer sends back.
        if self._broker.core.live_settings.current.reject_transaction_message:
            host = self._broker.identity.host
            raise RefusalError(
                ResponseCode.NO_PERMISSION, f"the broker[{host}] sending transaction message is forbidden"
            )
        if PropertyName.PGROUP not in properties:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "property PGROUP is missing: nobody could decide")
        make_half(message)
        _check_room(properties)
        self.half_count += 1

    def find_half_place(
        self, topic: str, queue_id: int, tran_msg: str, properties: str, unique_key: str
    ) -> QuickPlace | None:
        """Return where a half message is stored. This is the quick hook; the send hook judges unusual messages."""
        if tran_msg != "true" or self._broker.core.live_settings.current.reject_transaction_message:
            return None
        place = find_half_place(topic, queue_id, properties, unique_key, self._note_recent)
        self.half_count += place is not None
        return place

    def end(self, channel: Channel, request: RemotingCommand) -> Awaitable[None] | None:
        """37: commit or roll back; the reply comes when the decision is durable."""
        header: EndTransactionHeader = request.header or EndTransactionHeader.from_ext(request.ext_fields)
        if header.commit_or_rollback == sysflag.TRANSACTION_NONE:
            channel.leave_unanswered(request)  # As RocketMQ: the producer does not know yet, and the check will ask.
            return None
        try:
            return self._end(channel, request, header)
        except RefusalError:
            self.refused_count += 1
            raise

    async def resume(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """323: check a transaction again that was given up, or that is open, from the first check on."""
        header = ResumeCheckHalfMessageHeader.from_ext(request.ext_fields)
        try:
            _, offset = decode_stored_id(header.msg_id)
        except InvalidIdError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        await self._ready.wait()
        record = await read_cold(self._broker.core.cold, channel, partial(self._broker.store.record_at, offset))
        half = None if record is None else decode_record(record, check_crc=False)
        if half is None or half.topic not in (TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC) or real_queue(half) is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"msgId={header.msg_id}: is no half message of a transaction")
        old = self._check.find_open(half)
        if half.topic == TRANS_HALF_TOPIC and old is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"msgId={header.msg_id}: the transaction is not open")
        if half.topic == TRANS_CHECK_MAX_TIME_TOPIC and old is not None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"msgId={header.msg_id}: the transaction is checked already")
        copy = copied(half, TRANS_HALF_TOPIC, {PropertyName.TRANSACTION_CHECK_TIMES: "0"})
        try:
            result = await self._broker.core.waiters.append(partial(copy.put_into, self._broker.store))
        except NotDurableError as error:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"Put message back to {TRANS_HALF_TOPIC} failed. {error}"
            ) from None
        self._halves.note_copy(transaction_key(half), result.queue_offset)
        if old is not None:
            self._ops.add((old,))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    async def list_open(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900003: return a page of the open transactions."""
        header = OpenTransactionsHeader.from_ext(request.ext_fields)
        count = OPEN_TRANSACTIONS_MAX if header.max_transactions is None else header.max_transactions
        if not 1 <= count <= OPEN_TRANSACTIONS_MAX:
            reason = f"maxTransactions={count}: is not within 1 and {OPEN_TRANSACTIONS_MAX}"
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if header.offset < 0:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"offset={header.offset}: is negative")
        await self._ready.wait()
        page = await self._listing.page(header.offset, transactions_max=count)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=page.encode())

    def tell_decision(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900004: return how a transaction was decided, if that is remembered."""
        header = TransactionDecisionHeader.from_ext(request.ext_fields)
        known = KnownDecision(decision=self._halves.find_decision(header.message_id))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=known.encode())

    def tick(self) -> None:
        """Start the work that is due. A timer calls this every TICK_INTERVAL_MS."""
        if self._failure is not None:
            raise self._failure  # A bug. The timer ends the process, and recovery restores a known state.
        if self._work is not None and not self._work.done():
            return
        now_ms = self._broker.clock.monotonic_ms()
        if not self._ready.is_set():
            self._work = self._tasks.spawn(self._guard(self._load()))
        elif now_ms - self._ran_at_ms >= self._broker.core.live_settings.current.transaction_check_interval:
            self._ran_at_ms = now_ms
            self._work = self._tasks.spawn(self._guard(self._check.run()))

    def finish(self) -> None:
        """End the check, and append the op message of the decisions so far. Called when the broker stops."""
        if self._work is not None:
            self._work.cancel()
        self._ops.flush()

    def _end(self, channel: Channel, request: RemotingCommand, header: EndTransactionHeader) -> Awaitable[None] | None:
        """Decide at once if the half message is in memory, else in a task. Raises RefusalError."""
        decision = header.commit_or_rollback
        if decision not in (COMMIT, ROLLBACK):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"commitOrRollback={decision}: is not 0, 8 or 12")
        self._admit()
        if self._ready.is_set():
            half = self._recent.take(header.commit_log_offset)
            try:
                if half is None:
                    half = self._broker.core.cold.attempt(partial(self._decisions.find_half, header.commit_log_offset))
            except NotInMemoryError:
                pass
            else:
                self._decisions.decide(channel, request, header, half)
                return None
        if self._waiting_count >= WAITING_MAX:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} decisions wait already")
        return self._end_later(channel, request, header)

    def _admit(self) -> None:
        refusal = self._broker.core.waiters.admit()
        if refusal is not None:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, refusal)

    async def _end_later(self, channel: Channel, request: RemotingCommand, header: EndTransactionHeader) -> None:
        self._waiting_count += 1
        try:
            await self._ready.wait()
            find = partial(self._decisions.find_half, header.commit_log_offset)
            half = await read_cold(self._broker.core.cold, channel, find)
            self._admit()
            self._decisions.decide(channel, request, header, half)
        except RefusalError:
            self.refused_count += 1
            raise
        finally:
            self._waiting_count -= 1
            assert self._waiting_count >= 0, f"{self._waiting_count} decisions wait"

    async def _load(self) -> None:
        await self._check.load()
        self._ready.set()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (RefusalError, NotSavedError) as error:
            log.warning("the check of transactions stopped early; the next one goes on", reason=str(error))

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def _progress(self, topic: str) -> int:
        """Return the progress of the check in half or op topic."""
        store = self._broker.store
        offset = self._broker.tables.offsets.find(topic, CHECK_GROUP, QUEUE_ID)
        return max(offset or 0, store.min_offset(topic, QUEUE_ID))

    def _commit(self, topic: str, offset: int) -> None:
        self._broker.commits.commit(topic, CHECK_GROUP, QUEUE_ID, offset)

    def _ask(self, half: StoredMessage, copy: NewMessage, queue_offset: int, physical_offset: int) -> bool:
        """Ask a random live producer of the group. Return whether one could be asked."""
        group = half.properties.get(PropertyName.PGROUP)
        if group is None or real_queue(half) is None:
            return False
        broker = self._broker
        unique_key = half.properties.get(PropertyName.UNIQ_KEY)
        header = CheckTransactionStateHeader(
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=encode_packed_stored_id(broker.store.store_host, physical_offset),
            topic=TRANS_HALF_TOPIC,
            broker_name=broker.identity.name,
        )
        body = check_record(half, copy, queue_offset=queue_offset, physical_offset=physical_offset)
        members = broker.tables.producers.members(group)
        while members:
            member = members.pop(broker.rng.below(len(members)))
            command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=body, one_way=True)
            try:
                member.connection.send_one_way(command)
            except (BackpressureError, LocalProtocolError):
                continue  # This producer reads too slowly.
            return True
        return False


def _check_room(properties: Mapping[str, str]) -> None:
    """Refuse properties that leave no room for those of a check. Raises RefusalError."""
    room = PROPERTIES_BYTES_MAX - _PROPERTIES_ROOM
    characters = sum(len(name) + len(value) + 2 for name, value in properties.items())
    if characters > room // 4:  # A character takes up to four bytes.
        try:
            size = len(encode_properties(properties))
        except InvalidMessageError as error:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if size > room:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties of the half message have {size} bytes, at most {room} are taken",
            )


def build(broker: Broker) -> TransactionProcessor:
    """Build the feature from the broker's parts."""
    transactions = TransactionProcessor(broker)
    broker.special_properties.add(PropertyName.TRAN_MSG)
    broker.send_hooks.append(transactions.store_as_half)
    broker.quick_hooks[PropertyName.TRAN_MSG] = transactions.find_half_place
    broker.timers.append(("transactions", TICK_INTERVAL_MS, transactions.tick))
    broker.at_stop.append(transactions.finish)
    broker.figures += transactions.figures()
    return transactions
