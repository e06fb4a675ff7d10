"""Acks, returns and extensions of messages by their receipts: each receipt has a result of its own.

A receipt that is not one of the group never reaches a broker. The broker of a message judges all others: it knows whether
the receipt is still valid. The acks of one broker are one request.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gantry.client.consumer.pop import PopConsumer
from gantry.client.consumer.popacks import AckPart
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoAnswerError
from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.group import SubscriptionGroup
from gantry.model.retrypolicy import read_retry_policy
from gantry.remoting.codes import ResponseCode
from services.gateway.auth.receiptkey import ReceiptKey
from services.gateway.auth.receipts import Receipt, Receipts, TopicPart
from services.gateway.errors import FORBIDDEN, INVALID_FIELD, OUTCOME_UNKNOWN, ProblemError, problem_of
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import GroupKind

GONE: Final = "gone"
REFUSED: Final = "refused"
ACKED: Final = "acked"
NACKED: Final = "nacked"
EXTENDED: Final = "extended"

# Each change of a time is a request; more of them at once would not be faster.
CHANGES_AT_ONCE: Final = 64
_FIRST_RETRY_LEVEL: Final = 3
# The broker says with these codes that the receipt is no longer valid: expired or used before, or the queue has no such
# message any more.
_GONE_CODES: Final = frozenset({ResponseCode.NO_MESSAGE})


# Receipts by the part that they share: index in the request, queue offset, reconsume times.
_Parts = dict[TopicPart, list[tuple[int, int, int]]]


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The result of one receipt. It is a struct for speed.

    Attributes:
        receipt: The receipt, as the client sent it.
        outcome: ACKED, NACKED or EXTENDED, or GONE or REFUSED.
        problem: Reason of a refusal.
        new_receipt: The receipt that replaces it, if the message was extended.
    """

    receipt: str
    outcome: str
    problem: ProblemError | None = None
    new_receipt: str | None = None


@dataclass(slots=True)
class Sorted:
    """Receipts of a request by broker.

    Attributes:
        results: The results that are known already; None for the others.
        by_broker: The other receipts, by broker.
    """

    results: list[Settled | None]
    by_broker: dict[str, _Parts]

    def receipts(self) -> Iterator[tuple[int, Receipt]]:
        """Yield the receipts that are not settled yet, each with its index in the request."""
        for parts in self.by_broker.values():
            for part, members in parts.items():
                for index, offset, times in members:
                    yield index, Receipt(part.topic, times, part.pop.at(offset))


def sort_receipts(key: bytes, group: str, texts: Sequence[str], may_read: Callable[[str], bool]) -> Sorted:
    """Sort the receipts of a request by broker; pure.

    Args:
        key: The key of receipts.
        group: The group whose receipts they should be.
        texts: The receipts.
        may_read: Returns whether the caller may read a topic.
    """
    found = Sorted([None] * len(texts), {})
    seen: set[str] = set()
    known, may_read_part = Receipts(key, group), dict[TopicPart, bool]()
    members: _Parts = {}
    for index, text in enumerate(texts):
        if text in seen:
            # The first one settles the message.
            found.results[index] = Settled(text, GONE)
            continue
        seen.add(text)
        opened = known.open_one(text)
        if opened is None:
            reason = f"receipts: this is not a receipt of group {group}, or it was changed"
            problem = ProblemError(INVALID_FIELD, reason, field=f"/receipts/{index}")
            found.results[index] = Settled(text, REFUSED, problem)
            continue
        part, offset, times = opened
        if part not in may_read_part:
            may_read_part[part] = may_read(part.topic)
            if may_read_part[part]:
                members[part] = found.by_broker.setdefault(part.pop.broker_name, {})[part] = []
        if may_read_part[part]:
            members[part].append((index, offset, times))
        else:
            reason = f"receipts: the key has no right `consume` on topic {part.topic}"
            problem = ProblemError(FORBIDDEN, reason, field=f"/receipts/{index}")
            found.results[index] = Settled(text, REFUSED, problem)
    return found


def judge(text: str, index: int, error: ClientError | ProblemError | None, success: str) -> Settled:
    """Return the result of a receipt after its broker's answer, or the lack of one; pure."""
    if error is None:
        return Settled(text, success)
    if isinstance(error, BrokerError) and error.code in _GONE_CODES:
        return Settled(text, GONE)
    if isinstance(error, NoAnswerError) and error.sent:
        problem = ProblemError(OUTCOME_UNKNOWN, f"receipts: {error}")
    else:
        problem = problem_of(error)
    problem.field = f"/receipts/{index}"
    return Settled(text, REFUSED, problem)


def retry_delay_ms(group: SubscriptionGroup | None, failures: int) -> int:
    """Return the time after which a group gets a message again that failed; pure.

    Args:
        group: The group's configuration on the broker; None if the broker does not have it.
        failures: Number of failures of the message before this one.
    """
    delays = None if group is None else read_retry_policy(group.group_retry_policy)
    own_ms = 0 if delays is None else delays.delay_ms(failures)
    return own_ms or DELAY_LEVELS_MS[min(_FIRST_RETRY_LEVEL + failures, len(DELAY_LEVELS_MS)) - 1]


class Settling:
    """Settles messages by their receipts. The caller checks the right to the group."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, group_kind: GroupKind, receipt_key: ReceiptKey) -> None:
        self._engine = engine
        self._brokers = brokers
        self._group_kind = group_kind
        self._receipt_key = receipt_key

    async def ack(self, group: str, texts: Sequence[str], may_read: Callable[[str], bool]) -> list[Settled]:
        """Ack messages. Raises ProblemError (503) if the key of receipts is not known yet."""
        found = sort_receipts(self._receipt_key.require(), group, texts, may_read)
        popper = PopConsumer(self._engine, group)

        async def ack_of(broker: str, parts: _Parts) -> None:
            acks = [
                AckPart(part.topic, part.pop, [offset for _, offset, _ in members]) for part, members in parts.items()
            ]
            refused: Mapping[tuple[int, int], ClientError] = {}
            failed: ClientError | None = None
            try:
                refused = await popper.ack_parts(broker, acks)
            except ClientError as error:
                failed = error
            for number, members in enumerate(parts.values()):
                for index, offset, _ in members:
                    error_of = failed or (refused.get((number, offset)) if refused else None)
                    found.results[index] = judge(texts[index], index, error_of, ACKED)

        await asyncio.gather(*(ack_of(*part) for part in found.by_broker.items()))
        return _whole(found)

    async def nack(
        self, group: str, texts: Sequence[str], may_read: Callable[[str], bool], *, delay_ms: int | None
    ) -> list[Settled]:
        """Let messages be delivered again after a delay; None stands for the group's retry policy.

        Raises:
            ProblemError: 503: the key of receipts is not known yet.
        """
        found = sort_receipts(self._receipt_key.require(), group, texts, may_read)
        groups = {} if delay_ms is not None else await self._groups(group, found.by_broker)

        def delay_of(receipt: Receipt) -> int:
            if delay_ms is not None:
                return delay_ms
            return retry_delay_ms(groups.get(receipt.pop.broker_name), receipt.reconsume_times)

        await self._change(group, texts, found, delay_of, NACKED)
        return _whole(found)

    async def extend(
        self, group: str, texts: Sequence[str], may_read: Callable[[str], bool], *, invisible_ms: int
    ) -> list[Settled]:
        """Hide messages for a time from now on. Raises ProblemError (503) if the key of receipts is not known yet."""
        found = sort_receipts(self._receipt_key.require(), group, texts, may_read)
        await self._change(group, texts, found, lambda _: invisible_ms, EXTENDED)
        return _whole(found)

    async def _change(
        self, group: str, texts: Sequence[str], found: Sorted, invisible_ms_of: Callable[[Receipt], int], success: str
    ) -> None:
        """Change the invisible time of all receipts that are not settled yet."""
        popper, made = PopConsumer(self._engine, group), Receipts(self._receipt_key.require(), group)
        room = asyncio.Semaphore(CHANGES_AT_ONCE)

        async def change(index: int, receipt: Receipt) -> None:
            async with room:
                try:
                    pop = await popper.change_invisible_time(receipt.topic, receipt.pop, invisible_ms_of(receipt))
                except ClientError as error:
                    found.results[index] = judge(texts[index], index, error, success)
                    return
            new = made.sign(receipt._replace(pop=pop)) if success == EXTENDED else None
            found.results[index] = Settled(texts[index], success, new_receipt=new)

        await asyncio.gather(*(change(*item) for item in found.receipts()))

    async def _groups(self, group: str, brokers: Collection[str]) -> Mapping[str, SubscriptionGroup | None]:
        asked = await self._brokers.ask(lambda address: self._group_kind.find(address, group), brokers)
        # A broker that does not answer will not take the change either.
        return asked.answers


def _whole(found: Sorted) -> list[Settled]:
    results = [result for result in found.results if result is not None]
    assert len(results) == len(found.results), "each receipt has a result"
    return results
