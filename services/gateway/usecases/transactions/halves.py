"""Questions to brokers about a transaction: its half message, its decision, and the place where it was given up."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model import sysflag
from gantry.model.errors import RecordError
from gantry.model.message import StoredMessage
from gantry.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import iter_records
from gantry.remoting.bodies.transaction import KnownDecision, OpenTransactions
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.query import QueryMessageHeader
from gantry.remoting.headers.transaction import (
    OPEN_TRANSACTIONS_MAX,
    OpenTransactionsHeader,
    ResumeCheckHalfMessageHeader,
    TransactionDecisionHeader,
)
from gantry.runtime.digits import parse_digits
from services.gateway.db.transactions import COMMITTED, ROLLED_BACK, Transaction
from services.gateway.usecases.cluster.brokers import Brokers

_SAME_ID_MAX: Final = 64
_QUEUE_MAX: Final = 2**31 - 1
_END_MS: Final = 2**63 - 1
_STATES: Final = {sysflag.TRANSACTION_COMMIT: COMMITTED, sysflag.TRANSACTION_ROLLBACK: ROLLED_BACK}


@dataclass(frozen=True, slots=True)
class HalfPlace:
    """The place of a half message."""

    broker: str
    queue_offset: int
    physical_offset: int


class Halves:
    """Asks brokers about transactions."""

    def __init__(self, engine: ClientEngine, brokers: Brokers) -> None:
        self._engine = engine
        self._brokers = brokers

    async def find(self, transaction: Transaction) -> HalfPlace | None:
        """Return the place of the newest half message; None if no broker has one.

        Raises:
            ProblemError: 503: no broker that answered has one, and a broker does not answer.
        """
        found = [pair for pair in await self._query(TRANS_HALF_TOPIC, transaction) if _is_half(pair[1], transaction)]
        if not found:
            return None
        broker, half = max(found, key=lambda pair: (pair[1].stored_at_ms, pair[1].queue_offset))
        return HalfPlace(broker, half.queue_offset, half.physical_offset)

    async def find_message(self, transaction: Transaction) -> StoredMessage | None:
        """Return the newest half message under its own topic and queue, as a broker shows it in a check.

        None: no broker has one. Raises ProblemError (503) like `find`.
        """
        found = [half for _, half in await self._query(TRANS_HALF_TOPIC, transaction) if _is_half(half, transaction)]
        if not found:
            return None
        half = max(found, key=lambda each: (each.stored_at_ms, each.queue_offset))
        queue_id = parse_digits(half.properties.get(PropertyName.REAL_QID, ""), _QUEUE_MAX) or 0
        return half._replace(topic=transaction.topic, queue_id=queue_id)

    async def is_committed(self, transaction: Transaction) -> bool:
        """Return whether the broker of the half message has stored the message itself. Raises ProblemError (503)."""
        found = await self._query(transaction.topic, transaction, _only(transaction))
        return any(
            message.topic == transaction.topic
            and message.message_id == transaction.id
            and message.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT
            for _, message in found
        )

    async def find_given_up(self, transaction: Transaction) -> str | None:
        """Return the stored id of the message that was checked too often, if there is one. Raises ProblemError (503)."""
        found = await self._query(TRANS_CHECK_MAX_TIME_TOPIC, transaction, _only(transaction))
        given_up = [message for _, message in found if _is_half(message, transaction)]
        return max(given_up, key=lambda message: message.stored_at_ms).stored_id if given_up else None

    async def resume(self, broker: str, stored_id: str) -> None:
        """Let a broker check a transaction again that it gave up. Raises ProblemError (503), ClientError."""
        header = ResumeCheckHalfMessageHeader(msg_id=stored_id, topic=TRANS_CHECK_MAX_TIME_TOPIC)
        await self._engine.call(await self._brokers.master(broker), RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def find_decision(self, transaction: Transaction) -> str | None:
        """Return the state that the broker remembers for a transaction. Raises ProblemError (503), ClientError."""
        if transaction.broker is None:
            return None
        address = await self._brokers.master(transaction.broker)
        header = TransactionDecisionHeader(message_id=transaction.id)
        response = await self._engine.call(address, RequestCode.GANTRY_TRANSACTION_DECISION, header)
        decision = read_body(KnownDecision.decode, response, address).decision
        return None if decision is None else _STATES.get(decision)

    async def open_page(self, broker: str, offset: int) -> OpenTransactions:
        """Return a page of the open transactions of a broker. Raises ProblemError (503), ClientError."""
        address = await self._brokers.master(broker)
        header = OpenTransactionsHeader(offset=offset, max_transactions=OPEN_TRANSACTIONS_MAX)
        response = await self._engine.call(address, RequestCode.GANTRY_OPEN_TRANSACTIONS, header)
        return read_body(OpenTransactions.decode, response, address)

    async def _query(
        self, topic: str, transaction: Transaction, among: Iterable[str] | None = None
    ) -> list[tuple[str, StoredMessage]]:
        header = QueryMessageHeader(
            topic=topic,
            key=transaction.id,
            max_num=_SAME_ID_MAX,
            begin_timestamp=0,
            end_timestamp=_END_MS,
            unique_key_query=True,
        )

        async def ask(address: str) -> list[StoredMessage]:
            try:
                response = await self._engine.call(address, RequestCode.QUERY_MESSAGE, header)
                return list(iter_records(response.body_bytes))
            except BrokerError as error:
                if error.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                    return []
                raise
            except RecordError as error:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the answer is damaged: {error}", address) from None

        asked = await self._brokers.ask(ask, among)
        found = [(broker, message) for broker, messages in asked.answers.items() for message in messages]
        if not found and not asked.is_complete:
            raise asked.problem()
        return found


def _is_half(half: StoredMessage, transaction: Transaction) -> bool:
    properties = half.properties
    return (
        half.message_id == transaction.id
        and properties.get(PropertyName.PGROUP) == transaction.group_name
        and properties.get(PropertyName.REAL_TOPIC) == transaction.topic
    )


def _only(transaction: Transaction) -> tuple[str, ...] | None:
    return None if transaction.broker is None else (transaction.broker,)
