"""Transactions as callers see them: begun, decided, listed.

The order of a begin: the row in Postgres, then the half message at the broker, then its place in the row. If the
gateway dies in between, the transaction is open or does not exist: a broker's check, the mirror (mirror.py) and a
repeated begin with the same key find out. The order of a decision: the row, then the answer to the caller; the broker
is told in between if it answers in time, and otherwise by any gateway (deliveries.py).

A transaction of a remoting client is decided at its broker, and the row follows.

Concurrency: the event loop's thread, any number of calls at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.model.errors import InvalidValueError
from gantry.model.propertyname import PropertyName
from services.gateway.db.repositories import Actor
from services.gateway.db.transactions import (
    EXPIRED,
    HTTP,
    OPEN,
    REMOTING,
    Transaction,
    TransactionRepository,
)
from services.gateway.errors import (
    ALREADY_DECIDED,
    BROKER_UNAVAILABLE,
    CONFLICT,
    NOT_STORED,
    STORED,
    UNKNOWN,
    UNKNOWN_TRANSACTION,
    ProblemError,
    problem_of,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.transactions import NewTransaction
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page
from services.gateway.usecases.sending.preparing import PreparedMessage, prepare
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.usecases.transactions.delivery import Delivery, DeliveryResult, Ending
from services.gateway.usecases.transactions.halves import HalfPlace, Halves

LISTING: Final = "transactions"
LEASE: Final = timedelta(seconds=15)
"""Time for which the gateway that wrote a decision delivers it alone. Longer than a broker's time-out."""
PAUSE_MIN_S: Final = 2.0
PAUSE_MAX_S: Final = 300.0
"""Limits for the pause after a delivery that failed; it doubles each time."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of a begin.

    Attributes:
        transaction: The transaction.
        outcome: Outcome of the half message: `stored`, or `unknown` if it is less durable than the broker promises.
    """

    transaction: Transaction
    outcome: str


class Transactions:
    """The operations on transactions. The caller has checked the rights."""

    def __init__(
        self,
        metadata: Metadata,
        sending: SendMessages,
        engine: ClientEngine,
        halves: Halves,
        *,
        delivery: Delivery,
        metrics: GatewayMetrics,
        join: Callable[[str], None],
    ) -> None:
        """Make the use case; `join` makes this gateway a producer of a group at the brokers."""
        self._metadata = metadata
        self._sending = sending
        self._engine = engine
        self._halves = halves
        self._delivery = delivery
        self._metrics = metrics
        self._join = join

    async def begin(self, topic: str, new: NewTransaction, *, created_by: str) -> Begun:
        """Send a half message. Begun again with the same key, a transaction stays one.

        Args:
            topic: The destination; the caller has passed it to `SendMessages.check_topic`.
            new: The transaction.
            created_by: Id of the key.

        Raises:
            ProblemError: The half message was not stored, or its outcome is unknown; `outcome` says which. 409: the key
                names another transaction. 503: Postgres is unavailable, and nothing was stored.
        """
        try:
            prepared = prepare(new.message, self._engine.unique_keys.make)
        except InvalidValueError as error:
            raise problem_of(error, outcome=NOT_STORED) from None
        queue = await self._sending.find_queue(topic, new.message, prepared)
        try:
            async with self._metadata.transaction() as session:
                repository = TransactionRepository(session)
                is_new = await repository.begin(prepared.message_id, new.group, topic, created_by=created_by)
                row = await repository.get(prepared.message_id)
        except ProblemError as error:
            raise problem_of(error, outcome=NOT_STORED) from None
        assert row is not None, "a row that was written is there"
        if not is_new:
            known = await self._begun_before(row, new.group, topic)
            if known is not None:
                return Begun(known, STORED)
        self._join(new.group)
        try:
            sent = await self._sending.send_half(topic, _as_half(prepared, new), queue)
        except ProblemError as error:
            if error.outcome == NOT_STORED and is_new:
                await self._forget(row)
            raise
        self._metrics.count("transactions_begun")
        # As the request of a send has it: the stored id ends with the physical offset.
        place = HalfPlace(sent.broker, sent.queue_offset, int(sent.stored_id[-16:], 16))
        next_check_at = None if new.immunity_s is None else row.created_at + timedelta(seconds=new.immunity_s)
        return Begun(await self._set_place(row, place, next_check_at), sent.outcome)

    async def decide(
        self, transaction: str, state: str, actor: Actor, *, may_decide: Callable[[Transaction], bool]
    ) -> Transaction:
        """Commit or roll back; the decision is durable when this returns. To decide the same again changes nothing.

        Args:
            transaction: Id of the transaction.
            state: COMMITTED or ROLLED_BACK.
            actor: Origin of the decision.
            may_decide: Returns whether the caller may decide a transaction; one that it may not decide does not exist
                for it.

        Raises:
            ProblemError: 404: there is no such transaction. 409: it is decided otherwise, or given up. 503: Postgres is
                unavailable, or, for a transaction of a remoting client, its broker; nothing is decided.
        """
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            row = _require(await repository.get(transaction, lock=True), transaction, may_decide)
            is_open = row.state == OPEN
            if is_open and row.origin == HTTP:
                row = await repository.decide(row, state, lease=LEASE, actor=actor)
        if not is_open:
            if row.state != state:
                raise already_decided(row)
            return row
        if row.origin == REMOTING:
            return await self._decide_at_broker(row, state, actor)
        self._metrics.count(f"transactions_{state}")
        return await self.deliver(row)

    async def deliver(self, row: Transaction) -> Transaction:
        """Carry a decision to the broker, and return the transaction as it is then.

        Without Postgres the outcome is written after a later delivery, which does no harm.
        """
        result = await self._delivery.deliver(row, row.state)
        try:
            return await self._note(row, result)
        except ProblemError:
            if result.ending is Ending.DELIVERED:
                return replace(row, delivered_at=row.delivered_at or self._now())
            return row

    async def get(self, transaction: str, *, may_see: Callable[[Transaction], bool]) -> Transaction:
        """Return a transaction. Raises ProblemError (404, 503)."""
        async with self._metadata.transaction() as session:
            return _require(await TransactionRepository(session).get(transaction), transaction, may_see)

    async def page(
        self, *, state: str | None, group: str | None, topic: str | None, cursor: str | None, limit: int
    ) -> Page[Transaction]:
        """List transactions, newest first; None selects all. Raises InvalidValueError, ProblemError (503)."""
        before = None if cursor is None else _read_cursor(cursor)
        async with self._metadata.transaction() as session:
            found = await TransactionRepository(session).page(
                state=state, group=group, topic=topic, before=before, limit=limit
            )
        if len(found) < limit:
            return Page(found)
        last = found[-1]
        return Page(found, encode_cursor(LISTING, f"{last.created_at.isoformat()}/{last.id}"))

    async def _begun_before(self, row: Transaction, group: str, topic: str) -> Transaction | None:
        """Return the transaction that an earlier call began; None if its half message is not stored. Raises ProblemError."""
        if (row.group_name, row.topic, row.origin) != (group, topic, HTTP):
            detail = "Idempotency-Key: another transaction, of another group or topic, has this key"
            raise ProblemError(CONFLICT, detail, field="Idempotency-Key", outcome=NOT_STORED)
        if row.state != OPEN or row.broker is not None:
            return row
        try:
            place = await self._halves.find(row)
        except ProblemError as error:
            raise problem_of(error, outcome=UNKNOWN) from None
        return None if place is None else await self._set_place(row, place, None)

    async def _set_place(self, row: Transaction, place: HalfPlace, next_check_at: datetime | None) -> Transaction:
        values = {"queue_offset": place.queue_offset, "physical_offset": place.physical_offset}
        try:
            async with self._metadata.transaction() as session:
                written = await TransactionRepository(session).set_place(
                    row.id, place.broker, next_check_at=next_check_at, **values
                )
        except ProblemError:
            # The half message is stored and the row is there, so the transaction is open. The mirror finds its place.
            written = None
        return written or replace(row, broker=place.broker, next_check_at=next_check_at)

    async def _forget(self, row: Transaction) -> None:
        try:
            async with self._metadata.transaction() as session:
                await TransactionRepository(session).forget(row.id)
        except ProblemError:
            pass  # The mirror deletes it after a minute.

    async def _decide_at_broker(self, row: Transaction, state: str, actor: Actor) -> Transaction:
        """Decide a transaction of a remoting client: its broker knows whether it is still open."""
        result = await self._delivery.deliver(row, state)
        if result.ending is Ending.LATER:
            detail = f"transaction: {row.id} is not decided: {result.reason}"
            raise ProblemError(BROKER_UNAVAILABLE, detail, field="transaction")
        is_delivered = result.ending is Ending.DELIVERED
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            await repository.note_end(
                row,
                result.other_state or state,
                is_delivered=is_delivered,
                actor=actor if is_delivered else None,
            )
            after = await repository.get(row.id) or row
        if after.state != state:
            raise already_decided(after)
        return after

    async def _note(self, row: Transaction, result: DeliveryResult) -> Transaction:
        async with self._metadata.transaction() as session:
            repository = TransactionRepository(session)
            if result.place is not None:
                place = result.place
                await repository.set_place(
                    row.id, place.broker, queue_offset=place.queue_offset, physical_offset=place.physical_offset
                )
            if result.ending is Ending.DELIVERED:
                self._metrics.count("transactions_delivered")
                return await repository.delivered(row.id) or row
            self._metrics.count("transaction_delivery_failures")
            assert result.reason is not None, "a failed delivery has a reason"
            pause_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(row.attempts, 10))
            pause = timedelta(seconds=pause_s) if result.ending is Ending.LATER else None
            await repository.postpone(row.id, pause=pause, error=result.reason)
            return await repository.get(row.id) or row

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._engine.clock.now_ms() / 1_000, UTC)


def already_decided(row: Transaction) -> ProblemError:
    """Return the problem (409) of a transaction that is decided otherwise or given up."""
    what = "was given up by its broker" if row.state == EXPIRED else f"is {row.state.replace('_', ' ')} already"
    return ProblemError(
        ALREADY_DECIDED, f"transaction: {row.id} {what}", field="transaction", transaction_state=row.state
    )


def _as_half(prepared: PreparedMessage, new: NewTransaction) -> PreparedMessage:
    values = {PropertyName.TRAN_MSG: "true", PropertyName.PGROUP: new.group}
    if new.immunity_s is not None:
        values[PropertyName.CHECK_IMMUNITY_TIME] = str(new.immunity_s)
    prepared.properties += "".join(f"{name}\x01{value}\x02" for name, value in values.items())
    return prepared


def _require(row: Transaction | None, text: str, is_visible: Callable[[Transaction], bool]) -> Transaction:
    if row is None or not is_visible(row):
        detail = f"transaction: there is no transaction {text[:64]}"
        raise ProblemError(UNKNOWN_TRANSACTION, detail, field="transaction")
    return row


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    at, _, transaction = decode_cursor(cursor, LISTING).partition("/")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not transaction:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
    return moment, transaction
