"""The check: a periodic run over the half topic that asks producers about old open transactions.

Theory of operation. A run reads the half topic from its position on. Half messages that op messages name are passed.
An older one is stored again at the end of the half topic, with its count of checks, and its producer group is asked
about the copy (request 39). So one transaction that stays open for long does not hold back the progress of the others.
The old half message is then named in an op message, like a decided one. After `transactionCheckMax` checks the message
goes to TRANS_CHECK_MAX_TIME_TOPIC instead.

A half message whose decision is not durable yet is left alone. The progress stays at the first of them, and the next
run passes it. Progress is a committed offset of CID_RMQ_SYS_TRANS. It moves only after all copies before it are
durable. A crash therefore repeats checks, and loses none.

The start first reads the op messages and the copies that earlier runs have stored (`load`). Decisions wait for it.

Pacing: each step handles up to `_BATCH` half messages in a turn of long work (turns.py), then waits for the disk.

Damage: half messages that can't be read, or that retention has removed, are skipped and counted.

Source: RocketMQ 5.3 TransactionalMessageServiceImpl.check. It reads the op topic in each run, in parts of 32 messages. This broker
keeps what they say.

Concurrency: the loop's thread; one run at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from gantry.model.message import StoredMessage
from gantry.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.model.topic import Perm, TopicConfig
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.storeformat.opmessages import decode_op
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.newmessage import NewMessage
from services.broker.processors.reading import read_cold
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetResult, PutStatus
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.judgement import (
    CheckLimits,
    Verdict,
    checks_of,
    first_offset,
    is_copy,
    judge,
    limits_at,
)
from services.broker.transaction.messages import QUEUE_ID, copied, transaction_key
from services.broker.transaction.openhalves import OpenHalves
from services.broker.transaction.opwriter import OpWriter
from services.broker.turns import Turns

log = logger("broker.transaction")

# Less than 1 ms of work each: reading, storing again, and asking.
_BATCH: Final = 16
# Half messages that op messages name cost a look into a table each.
_PASSED_AT_ONCE: Final = 4096


@dataclass(slots=True)
class CheckCounts:
    """Counters of the runs since the start."""

    runs: int = 0
    asked: int = 0
    unasked: int = 0
    """Checks for which no producer of the group was connected."""
    renewed: int = 0
    given_up: int = 0
    skipped: int = 0
    """Half messages that are damaged or removed."""


@dataclass(slots=True)
class _Copy:
    """A half message that was stored again.

    Attributes:
        half: The half message that was read.
        message: Its copy.
        verdict: The reason for the copy.
        queue_offset: Queue offset of the copy.
        physical_offset: Physical offset of the copy.
        outcome: The durability of the copy; None until it is known.
    """

    half: StoredMessage
    message: NewMessage
    verdict: Verdict
    queue_offset: int = -1
    physical_offset: int = -1
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Run:
    """The state of one run.

    Attributes:
        limits: Limits of the run.
        offset: Queue offset of the step.
        held_at: First half message whose decision is not durable yet; the progress stays there.
        is_over: Whether the run has reached its end.
        needs_topic: Whether the topic for given up messages must be created before the run goes on.
    """

    limits: CheckLimits
    offset: int
    held_at: int | None = None
    is_over: bool = False
    needs_topic: bool = False


class Check:
    """Runs over the half topic.

    Args:
        decided: Half messages that op messages name, and the position of the check.
        ops: Writer of op messages.
        halves: Newest copies, and decisions under way.
        store: Store with half and op topic.
        waiters: Waiters for the durability of copies.
        cold: Reader of half messages that are not in memory.
        turns: Turns of long work.
        clock: Wall clock for ages.
        live_settings: Limits.
        reserved_hours: Hours after which the broker gives up a transaction.
        ask: Function that sends a check to a producer of the group. It gets the half message, its copy, and the queue
            offset and physical offset of the copy, and returns whether a producer was there.
        commit: Function that stores the progress in a topic.
        create_topic: Function that creates a topic and waits until it is on disk. It raises NotSavedError.
        has_topic: Function that returns whether a topic exists.
    """

    def __init__(
        self,
        decided: DecidedOffsets,
        ops: OpWriter,
        halves: OpenHalves,
        *,
        store: MessageStore,
        waiters: DurabilityWaiters,
        cold: ColdReader,
        turns: Turns,
        clock: Clock,
        live_settings: LiveSettings,
        reserved_hours: int,
        ask: Callable[[StoredMessage, NewMessage, int, int], bool],
        commit: Callable[[str, int], None],
        create_topic: Callable[[TopicConfig], Awaitable[None]],
        has_topic: Callable[[str], bool],
    ) -> None:
        self.counts = CheckCounts()
        self._decided = decided
        self._ops = ops
        self._halves = halves
        self._store = store
        self._waiters = waiters
        self._cold = cold
        self._turns = turns
        self._clock = clock
        self._live_settings = live_settings
        self._reserved_hours = reserved_hours
        self._ask = ask
        self._commit = commit
        self._create_topic = create_topic
        self._has_topic = has_topic
        # The op messages that the start finds. Later ones are added when they are written.
        self._op_end = store.max_offset(TRANS_OP_HALF_TOPIC, QUEUE_ID)
        self._waiting = 0
        self._all_stored: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read what the op messages say, and the copies of half messages. Raises RefusalError."""
        offset = self._decided.op_position
        while offset < self._op_end:
            found = await self._read(TRANS_OP_HALF_TOPIC, offset)
            async with self._turns:
                for record in found.records:
                    message = decode_record(record, check_crc=False)
                    if message.queue_offset < self._op_end:
                        self._decided.add(message.queue_offset, decode_op(message))
                self._turns.spend(1)
            offset = max(found.next_offset, offset + 1)
        await self._load_copies()

    async def _load_copies(self) -> None:
        offset, end = self._decided.position, self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
        while offset < end:
            offset = await self._pass_decided(offset, end)
            if offset >= end:
                return
            found = await self._read(TRANS_HALF_TOPIC, offset)
            async with self._turns:
                for record in found.records:
                    half = decode_record(record, check_crc=False)
                    if half.queue_offset not in self._decided and is_copy(half):
                        self._halves.note_copy(transaction_key(half), half.queue_offset)
                self._turns.spend(1)
            offset = max(found.next_offset, offset + 1)

    def find_open(self, half: StoredMessage) -> int | None:
        """Return the queue offset of the newest copy of a half message if its transaction is open, else None."""
        at = half.queue_offset if half.topic == TRANS_HALF_TOPIC else -1
        newest = self._halves.newest(transaction_key(half), at)
        is_ending = newest in self._decided or newest in self._ops.pending or newest in self._halves.deciding
        return None if newest < self._decided.position or is_ending else newest

    async def run(self) -> None:
        """Go once over the half topic, as far as half messages are old enough. Raises RefusalError."""
        settings, store = self._live_settings.current, self._store
        limits = limits_at(
            self._clock.now_ms(),
            timeout_ms=settings.transaction_time_out,
            checks_max=settings.transaction_check_max,
            reserved_hours=self._reserved_hours,
        )
        self.counts.runs += 1
        run = _Run(limits, self._decided.position)
        while not run.is_over and run.offset < (end := store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)):
            run.offset = await self._pass_decided(run.offset, end)
            if run.offset < end:
                run.offset = await self._step(run)
            self._advance(run.offset if run.held_at is None else run.held_at)

    async def _step(self, run: _Run) -> int:
        """Handle some half messages. Return the offset after them."""
        found = await self._read(TRANS_HALF_TOPIC, run.offset)
        copies: list[_Copy] = []
        async with self._turns:
            # Judging and storing is one piece of work: in between, a decision could arrive.
            next_offset = self._copy(run, found, copies)
            self._turns.spend(1)
        if copies:
            await self._durable()
            async with self._turns:
                next_offset = self._finish(run, copies, next_offset)
                self._turns.spend(1)
        if run.needs_topic:
            run.needs_topic = False
            await self._create_topic(TopicConfig(TRANS_CHECK_MAX_TIME_TOPIC, 1, 1, int(Perm.READ | Perm.WRITE)))
        return next_offset

    def _copy(self, run: _Run, found: GetResult, copies: list[_Copy]) -> int:
        """Judge the half messages that were read, and store copies of those that need one.

        Returns:
            The offset of the first half message that was not handled.
        """
        now_ms, halves = self._clock.now_ms(), self._halves
        for record in found.records:
            half = decode_record(record, check_crc=False)
            offset = half.queue_offset
            if offset in self._decided:
                continue
            if offset in self._ops.pending or offset in halves.deciding:
                run.held_at = offset if run.held_at is None else run.held_at
                continue
            if halves.newest(transaction_key(half), offset) != offset:
                continue  # A crash came after the newer copy, and before the op message that names this one.
            verdict = judge(half, run.limits, now_ms, self._decided)
            if verdict is Verdict.SKIP:
                continue
            if verdict is Verdict.STOP:
                run.is_over = True
                return offset
            if verdict is Verdict.GIVE_UP and not self._has_topic(TRANS_CHECK_MAX_TIME_TOPIC):
                run.needs_topic = True
                return offset
            if not self._put(_Copy(half, _copy_of(half, verdict), verdict), copies):
                run.is_over = True
                return offset
        next_offset = max(found.next_offset, run.offset + 1)
        self.counts.skipped += next_offset - run.offset - len(found.records)
        return next_offset

    def _put(self, copy: _Copy, copies: list[_Copy]) -> bool:
        """Store a copy. Return whether the run may go on."""
        half = copy.half
        result = copy.message.put_into(self._store)
        if result.status in (PutStatus.NOT_WRITABLE, PutStatus.CREATE_FILE_FAILED):
            log.warning("the check of transactions stopped early", reason=result.reason)
            return False
        if result.status is not PutStatus.OK:
            # No later try can succeed, and the transactions behind this one must not wait for it.
            log.error("a half message can't be stored again", half_offset=half.queue_offset, reason=result.reason)
            self.counts.skipped += 1
            return True
        copy.queue_offset, copy.physical_offset = result.queue_offset, result.physical_offset
        if copy.verdict is not Verdict.GIVE_UP:
            # At once: a decision that arrives now names the old half message, and must end the copy too.
            self._halves.note_copy(transaction_key(half), copy.queue_offset)
        copies.append(copy)
        self._waiting += 1
        self._waiters.wait(result.next_offset, self._stored, copy)
        return True

    def _stored(self, outcome: Outcome, copy: _Copy) -> None:
        copy.outcome = outcome
        self._waiting -= 1
        if not self._waiting and self._all_stored is not None and not self._all_stored.done():
            self._all_stored.set_result(None)

    async def _durable(self) -> None:
        """Wait until the outcome of each copy is known."""
        if self._waiting:
            self._all_stored = asyncio.get_running_loop().create_future()
            await self._all_stored
            self._all_stored = None

    def _finish(self, run: _Run, copies: list[_Copy], next_offset: int) -> int:
        """Name the old half messages in an op message, and ask producers about the copies that are counted.

        Returns:
            The offset up to which the run has come: a half message whose copy may be lost is not passed.
        """
        for copy in copies:
            half = copy.half
            if copy.outcome not in (Outcome.DURABLE, Outcome.REPLICATION_TIMEOUT):
                run.is_over = True
                return half.queue_offset
            self._ops.add((half.queue_offset,))
            if copy.verdict is Verdict.RENEW:
                self.counts.renewed += 1
            elif copy.verdict is Verdict.GIVE_UP:
                self.counts.given_up += 1
                self._halves.ended(transaction_key(half), None)
                log.warning(
                    "a transaction was checked too often and is given up",
                    group=half.properties.get(PropertyName.PGROUP),
                    topic=half.properties.get(PropertyName.REAL_TOPIC),
                    message_id=half.message_id,
                )
            elif self._ask(half, copy.message, copy.queue_offset, copy.physical_offset):
                self.counts.asked += 1
            else:
                self.counts.unasked += 1
        return next_offset

    def _advance(self, position: int) -> None:
        """Store the progress."""
        decided = self._decided
        if position > decided.position:
            decided.move_to(position)
            self._commit(TRANS_HALF_TOPIC, position)
            self._commit(TRANS_OP_HALF_TOPIC, decided.op_position)

    async def _pass_decided(self, offset: int, end: int) -> int:
        """Return the first offset from `offset` on that no op message names."""
        passed = 0
        while offset < end and offset in self._decided:
            offset += 1
            passed += 1
            if passed % _PASSED_AT_ONCE == 0:
                async with self._turns:
                    self._turns.spend(1)
        return offset

    async def _read(self, topic: str, offset: int) -> GetResult:
        """Read up to `_BATCH` records of a topic. Raises RefusalError."""

        def read() -> GetResult:
            self._turns.spend(1)
            return self._store.get(topic, QUEUE_ID, offset, _BATCH)

        return await read_cold(self._cold, self, read, turns=self._turns)


def _copy_of(half: StoredMessage, verdict: Verdict) -> NewMessage:
    """Return the copy that a verdict asks for."""
    if verdict is Verdict.GIVE_UP:
        return copied(half, TRANS_CHECK_MAX_TIME_TOPIC, {})
    if verdict is Verdict.CHECK:
        return copied(half, TRANS_HALF_TOPIC, {PropertyName.TRANSACTION_CHECK_TIMES: str(checks_of(half) + 1)})
    first = first_offset(half)
    offset = half.queue_offset if first is None else first
    return copied(half, TRANS_HALF_TOPIC, {PropertyName.TRAN_PREPARED_QUEUE_OFFSET: str(offset)})
