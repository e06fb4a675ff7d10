"""Carries a decision to the broker (END_TRANSACTION), and explains its answer."""

import enum
from dataclasses import dataclass
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.transactionchecks import Decision, end_transaction
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from services.gateway.db.transactions import COMMITTED, ROLLED_BACK, Transaction
from services.gateway.errors import ProblemError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.transactions.halves import HalfPlace, Halves

DECISIONS: Final = {COMMITTED: Decision.COMMIT, ROLLED_BACK: Decision.ROLLBACK}
_ALREADY: Final = {
    int(ResponseCode.TRANSACTION_SHOULD_COMMIT): COMMITTED,
    int(ResponseCode.TRANSACTION_SHOULD_ROLLBACK): ROLLED_BACK,
}
_UNKNOWN_HALF: Final = frozenset({int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.TRANSACTION_STATE_UNKNOWN)})
"""Codes of brokers that have no such open transaction; the first one has other causes, too."""


class Ending(enum.Enum):
    """The result of a delivery."""

    DELIVERED = "delivered"
    """The broker has the decision."""
    LATER = "later"
    """Another delivery may succeed."""
    NEVER = "never"
    """No later delivery can succeed."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of a delivery, and the reason if it failed.

    Attributes:
        ending: The result.
        reason: Why the broker does not have the decision; None if it has.
        place: Place of the half message, if it was not known before.
        other_state: State that the transaction has at the broker, if it was decided otherwise.
    """

    ending: Ending
    reason: str | None = None
    place: HalfPlace | None = None
    other_state: str | None = None


class Delivery:
    """Carries decisions to brokers. To carry one twice does no harm."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, halves: Halves) -> None:
        self._engine = engine
        self._brokers = brokers
        self._halves = halves

    async def deliver(self, transaction: Transaction, state: str) -> DeliveryResult:
        """Let the broker commit or roll back; wait until that is durable, or until a broker's time-out."""
        try:
            return await self._deliver(transaction, state)
        except (ProblemError, ClientError) as error:
            return DeliveryResult(Ending.LATER, str(error))

    async def _deliver(self, transaction: Transaction, state: str) -> DeliveryResult:
        known = _place_of(transaction)
        place = known or await self._halves.find(transaction)
        if place is None:
            return DeliveryResult(Ending.LATER, "no broker has the half message")
        answer = await self._end(transaction, place, state)
        if answer.code in _UNKNOWN_HALF and known is not None:
            # A check may have stored the half message again, and the broker may have restarted since.
            newer = await self._halves.find(transaction)
            if newer is not None and newer != known:
                place = newer
                answer = await self._end(transaction, place, state)
        found = place if place != known else None
        if answer.code == ResponseCode.SUCCESS:
            return DeliveryResult(Ending.DELIVERED, place=found)
        if answer.code in _ALREADY:
            other = _ALREADY[answer.code]
            if other == state:
                return DeliveryResult(Ending.DELIVERED, place=found)
            reason = f"broker {place.broker} has {other.replace('_', ' ')} it before, for another client"
            return DeliveryResult(Ending.NEVER, reason, found, other)
        if answer.code in _UNKNOWN_HALF:
            return await self._explain(transaction, place, state, answer)
        return DeliveryResult(Ending.LATER, _reason(place, answer), found)

    async def _end(self, transaction: Transaction, place: HalfPlace, state: str) -> RemotingCommand:
        request = end_transaction(
            transaction.group_name,
            DECISIONS[state],
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            message_id=transaction.id,
            transaction_id=transaction.id,
            topic=transaction.topic,
            broker_name=place.broker,
            # Otherwise the broker would refuse a decision after the immunity time.
            from_check=True,
            one_way=False,
        )
        address = await self._brokers.master(place.broker)
        return await self._engine.invoke(address, request, timeout_ms=self._engine.settings.send_timeout_ms)

    async def _explain(
        self, transaction: Transaction, place: HalfPlace, state: str, answer: RemotingCommand
    ) -> DeliveryResult:
        """Find out why the broker has no such open transaction."""
        found = None if place == _place_of(transaction) else place
        if state == ROLLED_BACK:
            if await self._halves.is_committed(transaction):
                reason = f"broker {place.broker} has committed it before, for another client"
                return DeliveryResult(Ending.NEVER, reason, found, COMMITTED)
            if answer.code == ResponseCode.TRANSACTION_STATE_UNKNOWN or await self._halves.find(transaction) is None:
                # It is decided, or its half message is gone. So the message will not be delivered.
                return DeliveryResult(Ending.DELIVERED, place=found)
            return DeliveryResult(Ending.LATER, _reason(place, answer), found)
        if await self._halves.is_committed(transaction):
            return DeliveryResult(Ending.DELIVERED, place=found)
        given_up = await self._halves.find_given_up(transaction)
        if given_up is None:
            return DeliveryResult(Ending.LATER, _reason(place, answer), found)
        # The decision came before the broker gave up, but did not reach it.
        await self._halves.resume(place.broker, given_up)
        newest = await self._halves.find(transaction)
        reason = f"broker {place.broker} had given it up, and goes on with it now"
        return DeliveryResult(Ending.LATER, reason, newest or found)


def _place_of(transaction: Transaction) -> HalfPlace | None:
    if transaction.broker is None or transaction.half_queue_offset is None or transaction.half_physical_offset is None:
        return None
    return HalfPlace(transaction.broker, transaction.half_queue_offset, transaction.half_physical_offset)


def _reason(place: HalfPlace, answer: RemotingCommand) -> str:
    return f"broker {place.broker}: {answer.remark or 'no reason'} (code {answer.code})"
