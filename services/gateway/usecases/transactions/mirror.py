"""Mirrors the open transactions of all brokers into Postgres, and finds out how those have ended that are not open any more.

One gateway at a time does it. So transactions of remoting clients are listed with those over HTTP, the places of half
messages become known if a gateway died before it wrote them, and transactions that a broker gave up expire. A
transaction that begins and ends between two rounds is not mirrored.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.client.errors import ClientError
from gantry.model.errors import InvalidNameError
from gantry.model.names import check_group, check_topic
from gantry.remoting.bodies.transaction import OpenTransaction
from gantry.remoting.codes import ResponseCode
from gantry.runtime.telemetry import logger
from services.gateway.db.leadership import Leadership
from services.gateway.db.transactions import (
    COMMITTED,
    EXPIRED,
    REMOTING,
    SeenHalf,
    Transaction,
    TransactionRepository,
)
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.transactions.halves import Halves

log = logger("gateway.transactions")

LEADERSHIP: Final = "transactions"
ID_LENGTH_MAX: Final = 128
PAGES_MAX: Final = 1_000
"""Limit of pages of one broker in a round. Beyond, the rest is not mirrored, and no transaction counts as ended."""
ENDED_MAX: Final = 100
"""Limit of ended transactions of one broker in a round; the rest follows in the next."""
LOST_AFTER: Final = timedelta(minutes=1)
"""Time after which a transaction that no broker knows is deleted: its half message was not stored, or its end is lost."""


class TransactionMirror:
    """The background work. One task runs it."""

    def __init__(
        self, halves: Halves, brokers: Brokers, metadata: Metadata, metrics: GatewayMetrics, *, interval_ms: int
    ) -> None:
        """Make it; the rounds have a pause of `interval_ms` in between."""
        self._halves = halves
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._interval_s = interval_ms / 1_000
        database = metadata.database
        self._leadership = None if database is None else Leadership(database, LEADERSHIP)

    async def run(self) -> None:
        """Mirror until cancelled."""
        if self._leadership is None:
            return
        try:
            while True:
                try:
                    if await self._leadership.hold():
                        await self.round()
                except (ProblemError, ClientError) as error:
                    log.info("transactions are not mirrored", reason=str(error))
                except Exception:  # boundary: of a background loop; it must not end the gateway.
                    log.exception("transactions are not mirrored")
                    self._metrics.count("transaction_faults")
                await asyncio.sleep(self._interval_s)
        finally:
            await self._leadership.release()

    async def round(self) -> None:
        """Mirror each broker once. Raises ProblemError (503)."""
        async with self._metadata.transaction() as session:
            began_at, has_open = await TransactionRepository(session).find_open()
        complete = True
        sets = await self._brokers.sets()
        for broker in sets:
            try:
                complete = await self._mirror(broker, began_at, has_open=has_open) and complete
            except (ProblemError, ClientError) as error:
                log.info("the transactions of a broker are not mirrored", broker=broker, reason=str(error))
                complete = False
        if has_open and sets and complete and not await self._brokers.missing():
            await self._drop_lost(began_at)

    async def _mirror(self, broker: str, began_at: datetime, *, has_open: bool) -> bool:
        """Mirror a broker; return whether all of its open transactions were seen. Raises ProblemError, ClientError.

        `has_open` says whether a transaction was open at the begin. If not, none can have ended since.
        """
        offset = 0
        for _ in range(PAGES_MAX):
            try:
                page = await self._halves.open_page(broker, offset)
            except ClientError as error:
                if getattr(error, "code", None) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return False  # A broker of Apache can't list its transactions.
                raise
            halves = [half for one in page.transactions if (half := _seen(one)) is not None]
            if halves:
                async with self._metadata.transaction() as session:
                    await TransactionRepository(session).see(broker, halves)
            if page.next_offset is None:
                break
            offset = page.next_offset
        else:
            return False
        if not has_open:
            return True
        async with self._metadata.transaction() as session:
            ended = await TransactionRepository(session).unseen(broker, before=began_at, limit=ENDED_MAX)
        for row in ended:
            await self._note_end(row)
        return True

    async def _note_end(self, row: Transaction) -> None:
        """Write how a transaction ended that its broker does not list any more. Raises ProblemError, ClientError."""
        state = await self._halves.find_decision(row)
        if state is None and await self._halves.is_committed(row):
            state = COMMITTED
        if state is None and await self._halves.find_given_up(row) is not None:
            state = EXPIRED
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            if state is not None:
                await repository.note_end(row, state, is_delivered=False, actor=None)
            elif row.origin == REMOTING:
                await repository.drop_mirrored(row.id, unseen_for=LOST_AFTER)
            else:
                await repository.touch(row.id)
        if state == EXPIRED:
            self._metrics.count("transactions_expired")
            log.warning("a transaction was given up by its broker", transaction=row.id, group=row.group_name)

    async def _drop_lost(self, began_at: datetime) -> None:
        """Delete transactions whose half message was never stored: the gateway died before it sent it."""
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            lost = await repository.unseen(None, before=began_at - LOST_AFTER, limit=ENDED_MAX)
        for row in lost:
            if await self._halves.find(row) is None:
                async with self._metadata.transaction() as session:
                    await TransactionRepository(session).forget(row.id)
                self._metrics.count("transactions_lost")


def _seen(one: OpenTransaction) -> SeenHalf | None:
    """Return a row for a half message; None if Postgres or the contract has no place for its names."""
    try:
        check_group(one.group)
        check_topic(one.topic)
    except InvalidNameError:
        return None
    if not 0 < len(one.message_id) <= ID_LENGTH_MAX or not (one.message_id.isascii() and one.message_id.isprintable()):
        return None
    try:
        created_at, next_check_at = (
            datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in (one.born_at, one.next_check_at)
        )
    except (OverflowError, ValueError, OSError):
        return None
    return SeenHalf(
        one.message_id,
        one.group,
        one.topic,
        created_at,
        one.queue_offset,
        one.physical_offset,
        min(one.checks, 2**31 - 1),
        next_check_at,
    )
