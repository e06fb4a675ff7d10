"""The delivery of a decision: what each answer of a broker means."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gantry.client.errors import RequestTimeoutError
from gantry.model import sysflag
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.transaction import EndTransactionHeader
from services.gateway.db.transactions import COMMITTED, ROLLED_BACK, Transaction
from services.gateway.errors import BROKER_UNAVAILABLE, ProblemError
from services.gateway.usecases.transactions.delivery import Delivery, Ending
from services.gateway.usecases.transactions.halves import HalfPlace

NOW = datetime(2026, 11, 24, tzinfo=UTC)
FIRST, NEWEST = HalfPlace("broker-a", 3, 300), HalfPlace("broker-a", 9, 900)


def row(place: HalfPlace | None = FIRST) -> Transaction:
    broker, queue_offset, physical_offset = (None,) * 3 if place is None else (place.broker, 3, 300)
    return Transaction(
        "T1", "http", "TX", "ORDERS", COMMITTED, "k", NOW, NOW, None, broker, queue_offset, physical_offset, 0, None, 0,
        None,
    )  # fmt: skip


class FakeBroker:
    """Answers deliveries with codes, in their order, and questions with its fields."""

    def __init__(self, *codes: int | Exception, newest: HalfPlace | None = None) -> None:
        self.codes = list(codes)
        self.newest = newest
        self.committed = False
        self.given_up: str | None = None
        self.requests: list[EndTransactionHeader] = []
        self.resumed: list[str] = []
        self.settings = SimpleNamespace(send_timeout_ms=3_000)
        self.delivery = Delivery(self, self, self)  # type: ignore[arg-type]

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        self.requests.append(EndTransactionHeader.from_ext(command.ext_fields))
        code = self.codes.pop(0)
        if isinstance(code, Exception):
            raise code
        return RemotingCommand.response_to(command, code, remark="why")

    async def master(self, broker: str) -> str:
        assert broker == "broker-a"
        return "10.0.0.1:10911"

    async def find(self, transaction: Transaction) -> HalfPlace | None:
        return self.newest

    async def is_committed(self, transaction: Transaction) -> bool:
        return self.committed

    async def find_given_up(self, transaction: Transaction) -> str | None:
        return self.given_up

    async def resume(self, broker: str, stored_id: str) -> None:
        self.resumed.append(stored_id)


@pytest.mark.parametrize(
    ("state", "number"), [(COMMITTED, sysflag.TRANSACTION_COMMIT), (ROLLED_BACK, sysflag.TRANSACTION_ROLLBACK)]
)
async def test_a_decision_names_the_half_message_and_passes_the_immunity_time(state, number):
    broker = FakeBroker(ResponseCode.SUCCESS)
    assert (await broker.delivery.deliver(row(), state)).ending is Ending.DELIVERED
    (request,) = broker.requests
    assert (request.producer_group, request.msg_id, request.commit_or_rollback) == ("TX", "T1", number)
    assert (request.tran_state_table_offset, request.commit_log_offset) == (3, 300)
    assert request.from_transaction_check


async def test_an_unknown_place_is_looked_up_and_returned():
    broker = FakeBroker(ResponseCode.SUCCESS, newest=NEWEST)
    result = await broker.delivery.deliver(row(None), COMMITTED)
    assert (result.ending, result.place) == (Ending.DELIVERED, NEWEST)
    assert broker.requests[0].commit_log_offset == 900


async def test_without_a_half_message_nothing_is_sent():
    broker = FakeBroker()
    assert (await broker.delivery.deliver(row(None), COMMITTED)).ending is Ending.LATER
    assert broker.requests == []


@pytest.mark.parametrize(
    "error", [RequestTimeoutError("10.0.0.1:10911", "late", sent=True), ProblemError(BROKER_UNAVAILABLE, "away")]
)
async def test_a_broker_that_does_not_answer_is_asked_later(error):
    result = await FakeBroker(error).delivery.deliver(row(), COMMITTED)
    assert result.ending is Ending.LATER
    assert result.reason


@pytest.mark.parametrize(
    ("code", "state", "ending", "other"),
    [
        (ResponseCode.TRANSACTION_SHOULD_COMMIT, COMMITTED, Ending.DELIVERED, None),
        (ResponseCode.TRANSACTION_SHOULD_COMMIT, ROLLED_BACK, Ending.NEVER, COMMITTED),
        (ResponseCode.TRANSACTION_SHOULD_ROLLBACK, COMMITTED, Ending.NEVER, ROLLED_BACK),
        (ResponseCode.TRANSACTION_SHOULD_ROLLBACK, ROLLED_BACK, Ending.DELIVERED, None),
        (ResponseCode.TOPIC_NOT_EXIST, COMMITTED, Ending.LATER, None),
        (ResponseCode.SYSTEM_BUSY, COMMITTED, Ending.LATER, None),
        (ResponseCode.FLUSH_DISK_TIMEOUT, COMMITTED, Ending.LATER, None),
    ],
)
async def test_the_answers_of_a_broker(code, state, ending, other):
    result = await FakeBroker(code).delivery.deliver(row(), state)
    assert (result.ending, result.other_state) == (ending, other)
    assert (result.reason is None) == (ending is Ending.DELIVERED)


async def test_a_newer_copy_of_the_half_message_is_used():
    broker = FakeBroker(ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS, newest=NEWEST)
    result = await broker.delivery.deliver(row(), COMMITTED)
    assert (result.ending, result.place) == (Ending.DELIVERED, NEWEST)
    assert [request.commit_log_offset for request in broker.requests] == [300, 900]


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.TRANSACTION_STATE_UNKNOWN])
async def test_a_commit_that_was_delivered_before_is_found(code):
    broker = FakeBroker(code, newest=FIRST)
    broker.committed = True
    assert (await broker.delivery.deliver(row(), COMMITTED)).ending is Ending.DELIVERED


async def test_a_commit_that_the_broker_could_not_write_is_delivered_later():
    broker = FakeBroker(ResponseCode.SYSTEM_ERROR, newest=FIRST)
    assert (await broker.delivery.deliver(row(), COMMITTED)).ending is Ending.LATER


async def test_a_commit_of_a_transaction_that_was_given_up_is_resumed():
    broker = FakeBroker(ResponseCode.TRANSACTION_STATE_UNKNOWN, newest=FIRST)
    broker.given_up = "stored id"
    assert (await broker.delivery.deliver(row(), COMMITTED)).ending is Ending.LATER
    assert broker.resumed == ["stored id"]


@pytest.mark.parametrize(
    ("code", "newest", "committed", "ending"),
    [
        (ResponseCode.TRANSACTION_STATE_UNKNOWN, FIRST, False, Ending.DELIVERED),
        (ResponseCode.TRANSACTION_STATE_UNKNOWN, FIRST, True, Ending.NEVER),
        (ResponseCode.SYSTEM_ERROR, None, False, Ending.DELIVERED),
        # The broker could not write the rollback: the half message is there, and perhaps still open.
        (ResponseCode.SYSTEM_ERROR, FIRST, False, Ending.LATER),
    ],
)
async def test_a_rollback_counts_as_delivered_only_if_nothing_can_be_delivered(code, newest, committed, ending):
    broker = FakeBroker(code, newest=newest)
    broker.committed = committed
    result: Any = await broker.delivery.deliver(row(), ROLLED_BACK)
    assert result.ending is ending
