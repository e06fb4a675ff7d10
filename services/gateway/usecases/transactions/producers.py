"""This gateway as a producer of the groups that have transactions over HTTP: it answers the checks of brokers.

Postgres answers first: a decided transaction ends as it was decided. The askers (checking.py) are asked about an open
one, in their order. Their answer is written like any decision. A transaction without a row, or of a remoting client,
gets no answer here; the broker asks again, perhaps another producer.

Concurrency: the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.transactionchecks import Decision
from gantry.model.errors import CorruptRecordError
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.runtime.digits import parse_digits
from gantry.runtime.telemetry import logger
from services.gateway.db.repositories import Actor
from services.gateway.db.transactions import COMMITTED, HTTP, OPEN, ROLLED_BACK, Transaction, TransactionRepository
from services.gateway.errors import ALREADY_DECIDED, CONFLICT, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.messages import read_message
from services.gateway.usecases.transactions.checking import Asker, TransactionCheck
from services.gateway.usecases.transactions.delivery import DECISIONS
from services.gateway.usecases.transactions.halves import Halves
from services.gateway.usecases.transactions.transactions import Transactions

log = logger("gateway.transactions")

POLL_S: Final = 2.0
KEPT_S: Final = 60.0
"""Time for which the gateway stays a producer of a group without open transactions."""
GROUPS_MAX: Final = 1_000
PRODUCER: Final = Actor("check")
"""The origin of a decision that a producer gave in answer to a check."""
CHECK_NOW_S: Final = 20.0
"""Time for the answers to a check that a person asks for."""
FOUND_AT_ONCE: Final = 16
"""Checks of all groups whose rows are read at the same time."""
_CHECKS_MAX: Final = 2**31 - 1


class ProducerGroups:
    """Joins and leaves producer groups, and answers their checks."""

    def __init__(
        self,
        engine: ClientEngine,
        metadata: Metadata,
        metrics: GatewayMetrics,
        halves: Halves,
        *,
        has_transactions: Callable[[], bool],
    ) -> None:
        """Make it; `has_transactions` returns whether transactions of HTTP may be open or undelivered."""
        self._engine = engine
        self._metadata = metadata
        self._metrics = metrics
        self._halves = halves
        self._has_transactions = has_transactions
        self._askers: Sequence[Asker] = ()
        self._transactions: Transactions | None = None
        # Group → function that ends listening, and the time (monotonic ms) at which it was needed last.
        self._joined: dict[str, Callable[[], None]] = {}
        self._needed_ms: dict[str, int] = {}
        self._finding = asyncio.Semaphore(FOUND_AT_ONCE)

    def use(self, transactions: Transactions, askers: Sequence[Asker]) -> None:
        """Set the use case that writes the answers of the askers."""
        self._transactions = transactions
        self._askers = askers

    def join(self, group: str) -> None:
        """Become a producer of a group; the next heart-beats tell the brokers."""
        if group not in self._joined:
            if len(self._joined) >= GROUPS_MAX:
                return
            self._joined[group] = self._engine.transaction_checks.listen(group, self.answer)
            self._engine.heartbeats.add_producer(self._engine.client_id, group)
        self._needed_ms[group] = self._engine.clock.monotonic_ms()

    async def run(self) -> None:
        """Follow the groups that are needed, until cancelled."""
        while True:
            try:
                await self.round()
            except ProblemError as error:
                log.info("the producer groups of transactions stay as they are", reason=error.detail)
            except Exception:  # boundary: of a background loop; it must not end the gateway.
                log.exception("the producer groups of transactions stay as they are")
                self._metrics.count("transaction_faults")
            self._metrics.gauges["producer_groups"] = len(self._joined)
            await asyncio.sleep(POLL_S)

    async def round(self) -> None:
        """Join the groups that are needed, and leave those that are not. Raises ProblemError (503)."""
        for asker in self._askers:
            for group in asker.groups():
                self.join(group)
        if self._metadata.database is not None and self._has_transactions():
            async with self._metadata.transaction() as session:
                groups = await TransactionRepository(session).unfinished_groups(limit=GROUPS_MAX)
            for group in groups:
                self.join(group)
        kept_from_ms = self._engine.clock.monotonic_ms() - int(KEPT_S * 1_000)
        for group in [group for group, needed_ms in self._needed_ms.items() if needed_ms < kept_from_ms]:
            del self._needed_ms[group]
            self._joined.pop(group)()
            await self._engine.heartbeats.remove_producer(self._engine.client_id, group)
        assert self._joined.keys() == self._needed_ms.keys(), "each group has the time at which it was needed last"

    async def answer(self, half: StoredMessage) -> Decision:
        """Return the decision on a half message that a broker asks about. This is the listener of all groups."""
        try:
            async with self._finding:
                row = await self._find(half)
            if row is not None and row.state == OPEN and row.origin == HTTP:
                check = _check(row, half)
                if check is not None:
                    row = await self._ask(row, half, check)
        except ProblemError as error:
            log.warning("a check is not answered; the broker asks again", reason=error.detail, message=half.message_id)
            row = None
        decision = Decision.UNKNOWN if row is None else DECISIONS.get(row.state, Decision.UNKNOWN)
        self._metrics.count(f"transaction_checks_{decision.name.lower()}")
        return decision

    async def check_now(
        self, transaction: str, *, may_decide: Callable[[Transaction], bool]
    ) -> tuple[Transaction, bool]:
        """Ask the producers of an open transaction through this gateway, and write their answer as a decision.

        Args:
            transaction: Id of the transaction.
            may_decide: Returns whether the caller may decide a transaction; one that it may not decide does not exist
                for it.

        Returns:
            The transaction as it is then, and whether a producer was asked: not about a decided one, and not if no
            stream and no URL of its group could be asked.

        Raises:
            ProblemError: 404: there is no such transaction. 409: it is of a remoting client, or its message is not
                stored. 503: Postgres or a broker is unavailable.
        """
        assert self._transactions is not None, "`use` comes before the first check"
        row = await self._transactions.get(transaction, may_see=may_decide)
        if row.state != OPEN:
            return row, False
        if row.origin != HTTP:
            detail = f"transaction: {row.id} is of a RocketMQ client, whom only its broker asks"
            raise ProblemError(CONFLICT, detail, field="transaction")
        half = await self._halves.find_message(row)
        if half is None:
            raise ProblemError(CONFLICT, f"transaction: the message of {row.id} is on no broker", field="transaction")
        check = _check(row, half)
        if check is None:
            return row, False
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_NOW_S):
                return await self._ask(row, half, check), check.is_asked
        return await self._transactions.get(transaction, may_see=may_decide), check.is_asked

    async def _find(self, half: StoredMessage) -> Transaction | None:
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            row = await repository.get(half.message_id)
            of_half = (half.properties.get(PropertyName.PGROUP), half.topic)
            if row is None or (row.group_name, row.topic) != of_half:
                return None
            await repository.note_check(row.id, _checks_of(half))
        return row

    async def _ask(self, row: Transaction, half: StoredMessage, check: TransactionCheck) -> Transaction:
        """Ask the askers about an open transaction, and return it as it is then. Raises ProblemError (503)."""
        assert self._transactions is not None, "`use` comes before the first check"
        for asker in self._askers:
            commits = await asker.ask(check)
            if commits is None:
                continue
            try:
                state = COMMITTED if commits else ROLLED_BACK
                return await self._transactions.decide(row.id, state, PRODUCER, may_decide=lambda _: True)
            except ProblemError as error:
                if error.kind is not ALREADY_DECIDED:
                    raise
                # Another caller has decided meanwhile.
                return await self._find(half) or row
        return row


def _check(row: Transaction, half: StoredMessage) -> TransactionCheck | None:
    """Return the question about a transaction; None if its message is damaged."""
    try:
        message = read_message(half, row.broker or str(half.store_host))
    except CorruptRecordError as error:
        log.warning("the message of a check is damaged", transaction=row.id, reason=error.reason)
        return None
    return TransactionCheck(row.id, row.group_name, message, _checks_of(half))


def _checks_of(half: StoredMessage) -> int:
    """Return how often the broker has asked about a half message, this time included."""
    return parse_digits(half.properties.get(PropertyName.TRANSACTION_CHECK_TIMES, ""), _CHECKS_MAX) or 1
