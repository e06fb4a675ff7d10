"""The list of open transactions (request 900003), read from the half topic.

A page begins at a queue offset of the half topic and ends after a number of transactions, or of half messages that were
read. A check stores a half message again at the end of the topic. So a transaction may be listed twice, on two pages
with a check in between; none is left out.

Concurrency: the loop's thread; long work takes turns (turns.py).
"""

from typing import Final

from gantry.model.message import StoredMessage
from gantry.model.names import TRANS_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.remoting.bodies.transaction import OpenTransaction, OpenTransactions
from gantry.runtime.clock import Clock
from services.broker.coldreader import ColdReader
from services.broker.processors.reading import read_cold
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetResult
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.judgement import checks_of, immunity_ms
from services.broker.transaction.messages import QUEUE_ID, real_queue, transaction_key
from services.broker.transaction.openhalves import OpenHalves
from services.broker.transaction.opwriter import OpWriter
from services.broker.turns import Turns

_BATCH: Final = 32
READ_MAX: Final = 1_024
"""Limit of half messages that one page reads."""
_PASSED_AT_ONCE: Final = 4_096
PASSED_MAX: Final = 65_536
"""Limit of decided half messages that one page passes without reading them."""


class OpenListing:
    """Lists the transactions that are not decided."""

    def __init__(
        self,
        decided: DecidedOffsets,
        ops: OpWriter,
        halves: OpenHalves,
        *,
        store: MessageStore,
        cold: ColdReader,
        turns: Turns,
        clock: Clock,
        live_settings: LiveSettings,
    ) -> None:
        self._decided = decided
        self._ops = ops
        self._halves = halves
        self._store = store
        self._cold = cold
        self._turns = turns
        self._clock = clock
        self._live_settings = live_settings

    async def page(self, offset: int, *, transactions_max: int) -> OpenTransactions:
        """Return the open transactions from a queue offset of the half topic on. Raises RefusalError."""
        offset, end = max(offset, self._decided.position), self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
        found: list[OpenTransaction] = []
        read = passed = 0
        while offset < end and read < READ_MAX and passed < PASSED_MAX and len(found) < transactions_max:
            async with self._turns:
                first = offset
                while offset < end and offset - first < _PASSED_AT_ONCE and self._is_decided(offset):
                    offset += 1
                passed += offset - first
                self._turns.spend(0.5)
            if offset >= end or self._is_decided(offset):
                continue
            records = await self._read(offset)
            async with self._turns:
                for record in records.records:
                    half = decode_record(record, check_crc=False)
                    offset = half.queue_offset + 1
                    read += 1
                    if self._is_open(half):
                        found.append(self._listed(half))
                        if len(found) == transactions_max:
                            break
                else:
                    offset = max(records.next_offset, offset if records.records else offset + 1)
                    read += not records.records
                self._turns.spend(1)
        return OpenTransactions(
            transactions=found, next_offset=offset if offset < end else None, now_ms=self._clock.now_ms()
        )

    def _is_decided(self, offset: int) -> bool:
        return offset in self._decided or offset in self._ops.pending or offset in self._halves.deciding

    def _is_open(self, half: StoredMessage) -> bool:
        offset = half.queue_offset
        if self._is_decided(offset) or real_queue(half) is None:
            return False
        return self._halves.newest(transaction_key(half), offset) == offset

    def _listed(self, half: StoredMessage) -> OpenTransaction:
        queue = real_queue(half)
        assert queue is not None, "only half messages that name their queue are listed"
        return OpenTransaction(
            born_at=half.born_at_ms,
            checks=checks_of(half),
            group=half.properties.get(PropertyName.PGROUP, ""),
            message_id=half.properties.get(PropertyName.UNIQ_KEY, ""),
            next_check_at=self._next_check_ms(half),
            physical_offset=half.physical_offset,
            queue_id=queue[1],
            queue_offset=half.queue_offset,
            stored_at=half.stored_at_ms,
            topic=queue[0],
        )

    def _next_check_ms(self, half: StoredMessage) -> int:
        """Return the earliest time (wall ms) at which the broker asks about a half message."""
        settings = self._live_settings.current
        if checks_of(half):
            return half.stored_at_ms + settings.transaction_check_interval
        timeout_ms = settings.transaction_time_out
        immunity = half.properties.get(PropertyName.CHECK_IMMUNITY_TIME)
        return half.born_at_ms + (timeout_ms if immunity is None else immunity_ms(immunity, timeout_ms))

    async def _read(self, offset: int) -> GetResult:
        def read() -> GetResult:
            self._turns.spend(1)
            return self._store.get(TRANS_HALF_TOPIC, QUEUE_ID, offset, _BATCH)

        return await read_cold(self._cold, self, read, turns=self._turns)
