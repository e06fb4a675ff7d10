"""Transactions in Postgres: leases of deliveries, what a dead gateway leaves behind, checks, and retention."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gantry.client.transactionchecks import Decision
from gantry.model.address import Address, pack_host
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.record import decode_record, encode_record
from gantry.remoting.bodies.transaction import OpenTransaction, OpenTransactions
from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import Database
from services.gateway.db.repositories import Actor
from services.gateway.db.transactions import (
    COMMITTED,
    EXPIRED,
    OPEN,
    REMOTING,
    ROLLED_BACK,
    Transaction,
    TransactionRepository,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.usecases.transactions.deliveries import Deliveries
from services.gateway.usecases.transactions.delivery import DeliveryResult, Ending
from services.gateway.usecases.transactions.halves import HalfPlace
from services.gateway.usecases.transactions.mirror import TransactionMirror
from services.gateway.usecases.transactions.producers import ProducerGroups
from services.gateway.usecases.transactions.transactions import Transactions
from spark.postgres import Connection, connect
from tests.support.postgres import PostgresServer

ALICE = Actor("k-alice", "req-1")
GROUP, TOPIC = "TX", "ORDERS"
HOST = Address("10.0.0.1", 10911)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with connect(postgres.url, application="gantry-test") as connection:
        connection.execute("TRUNCATE transactions, audit")
        yield connection
        connection.execute("TRUNCATE transactions, audit")


@pytest.fixture
async def metadata(postgres: PostgresServer, connection: Connection) -> AsyncIterator[Metadata]:
    database = Database.open(postgres.url, clock=SystemClock())
    yield Metadata(database)
    await database.close()


class FakeDelivery:
    """A broker that has the decisions, or answers with `result`."""

    def __init__(self) -> None:
        self.result = DeliveryResult(Ending.DELIVERED)
        self.delivered: list[tuple[str, str]] = []

    async def deliver(self, row: Transaction, state: str) -> DeliveryResult:
        self.delivered.append((row.id, state))
        return self.result


class FakeHalves:
    """One broker: its open transactions, and the ends that it knows."""

    def __init__(self) -> None:
        self.open: list[OpenTransaction] = []
        self.decisions: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.committed: set[str] = set()

    async def open_page(self, broker: str, offset: int) -> OpenTransactions:
        return OpenTransactions(
            transactions=self.open[offset : offset + 1],
            next_offset=offset + 1 if offset + 1 < len(self.open) else None,
            now_ms=0,
        )

    async def find(self, row: Transaction) -> HalfPlace | None:
        found = [HalfPlace("broker-a", one.queue_offset, 1) for one in self.open if one.message_id == row.id]
        return found[0] if found else None

    async def find_decision(self, row: Transaction) -> str | None:
        return self.decisions.get(row.id)

    async def find_given_up(self, row: Transaction) -> str | None:
        return "stored id" if row.id in self.given_up else None

    async def is_committed(self, row: Transaction) -> bool:
        return row.id in self.committed


class FakeBrokers:
    async def sets(self) -> dict[str, Any]:
        return {"broker-a": None}

    async def missing(self) -> list[str]:
        return []


class FakeAsker:
    def __init__(self, answer: bool | None) -> None:
        self.answer = answer
        self.asked: list[TransactionCheck] = []

    async def ask(self, check: TransactionCheck) -> bool | None:
        self.asked.append(check)
        return self.answer

    def groups(self) -> Collection[str]:
        return ()


class Gateway:
    """The transactions of one gateway on a real Postgres, with a broker that is made up."""

    def __init__(self, metadata: Metadata, *askers: FakeAsker) -> None:
        self.metadata = metadata
        self.delivery, self.halves, self.metrics = FakeDelivery(), FakeHalves(), GatewayMetrics()
        self.engine: Any = SimpleNamespace(clock=SystemClock())
        self.transactions = Transactions(
            metadata,
            None,  # type: ignore[arg-type]
            self.engine,
            self.halves,  # type: ignore[arg-type]
            delivery=self.delivery,  # type: ignore[arg-type]
            metrics=self.metrics,
            join=lambda group: None,
        )
        self.deliveries = Deliveries(
            self.transactions, metadata, self.metrics, clock=SystemClock(), keep_days=30, due=asyncio.Event()
        )
        self.mirror = TransactionMirror(
            self.halves,  # type: ignore[arg-type]
            FakeBrokers(),  # type: ignore[arg-type]
            metadata,
            self.metrics,
            interval_ms=1000,
        )
        self.producers = ProducerGroups(
            self.engine,
            metadata,
            self.metrics,
            self.halves,  # type: ignore[arg-type]
            has_transactions=lambda: True,
        )
        self.producers.use(self.transactions, askers)

    async def begin(self, transaction: str, *, with_place: bool = True) -> None:
        async with self.metadata.transaction() as session:
            repository = TransactionRepository(session)
            assert await repository.begin(transaction, GROUP, TOPIC, created_by="k-alice")
            if with_place:
                await repository.set_place(transaction, "broker-a", queue_offset=1, physical_offset=100)

    async def get(self, transaction: str) -> Transaction | None:
        async with self.metadata.transaction() as session:
            return await TransactionRepository(session).get(transaction)

    async def decide(self, transaction: str, state: str = COMMITTED) -> Transaction:
        return await self.transactions.decide(transaction, state, ALICE, may_decide=lambda row: True)


def listed(message_id: str, **changes: Any) -> OpenTransaction:
    values = {
        "born_at": 1_700_000_000_000, "checks": 0, "group": GROUP, "message_id": message_id,
        "next_check_at": 1_700_000_006_000, "physical_offset": 4096, "queue_id": 0, "queue_offset": 7,
        "stored_at": 1_700_000_000_001, "topic": TOPIC,
    }  # fmt: skip
    return OpenTransaction(**{**values, **changes})


def half(message_id: str, *, group: str = GROUP, topic: str = TOPIC, checks: int = 1) -> StoredMessage:
    """Return a half message as a check carries it."""
    properties = {"UNIQ_KEY": message_id, "PGROUP": group, "TRANSACTION_CHECK_TIMES": str(checks)}
    host = pack_host(HOST)
    return decode_record(
        encode_record(
            0, 0, 7, 4096, 0, 1, host, 2, host, 0, 0, b"paid", topic.encode(), encode_properties(properties), None, 1,
            False,
        )
    )  # fmt: skip


async def test_a_decision_that_was_not_delivered_is_delivered_by_another_gateway_after_the_lease(metadata, connection):
    first, second = Gateway(metadata), Gateway(metadata)
    await first.begin("T1")
    # The first gateway dies after the decision is written.
    async with metadata.transaction() as session:
        repository = TransactionRepository(session)
        row = await repository.get("T1", lock=True)
        assert row is not None
        await repository.decide(row, COMMITTED, lease=timedelta(seconds=15), actor=ALICE)
    assert await second.deliveries.round() == 0
    connection.execute("UPDATE transactions SET due_at = now()")
    assert await second.deliveries.round() == 1
    assert second.delivery.delivered == [("T1", COMMITTED)]
    row = await second.get("T1")
    assert row is not None
    assert row.delivered_at is not None
    connection.execute("UPDATE transactions SET due_at = now() WHERE due_at IS NOT NULL")
    assert await second.deliveries.round() == 0


async def test_two_gateways_do_not_take_the_same_decision(metadata, connection):
    gateways = [Gateway(metadata), Gateway(metadata)]
    for index in range(40):
        await gateways[0].begin(f"T{index}")
    gateways[0].delivery.result = DeliveryResult(Ending.LATER, "away")
    for index in range(40):
        await gateways[0].decide(f"T{index}", ROLLED_BACK)
    connection.execute("UPDATE transactions SET due_at = now()")
    gateways[0].delivery = FakeDelivery()
    counts = await asyncio.gather(*(gateway.deliveries.round() for gateway in gateways))
    assert sum(counts) <= 40
    while sum(counts) < 40:
        counts.append(await gateways[1].deliveries.round())


async def test_a_delivery_that_fails_says_why_and_is_tried_again(metadata, connection):
    gateway = Gateway(metadata)
    await gateway.begin("T1")
    gateway.delivery.result = DeliveryResult(Ending.LATER, "broker-a is away")
    row = await gateway.decide("T1")
    assert (row.state, row.delivered_at, row.error) == (COMMITTED, None, "broker-a is away")
    connection.execute("UPDATE transactions SET due_at = now()")
    gateway.delivery.result = DeliveryResult(Ending.DELIVERED, place=HalfPlace("broker-b", 3, 300))
    assert await gateway.deliveries.round() == 1
    row = await gateway.get("T1")
    assert row is not None
    assert (row.error, row.broker, row.attempts) == (None, "broker-b", 2)


async def test_the_mirror_finds_the_half_message_of_a_gateway_that_died_before_it_wrote_the_place(metadata):
    gateway = Gateway(metadata)
    await gateway.begin("T1", with_place=False)
    gateway.halves.open = [listed("T1", checks=2)]
    await gateway.mirror.round()
    row = await gateway.get("T1")
    assert row is not None
    assert (row.origin, row.state, row.broker) == ("http", OPEN, "broker-a")
    assert (row.half_queue_offset, row.half_physical_offset, row.checks) == (7, 4096, 2)


async def test_the_mirror_drops_a_transaction_whose_half_message_was_never_sent(metadata, connection):
    gateway = Gateway(metadata)
    await gateway.begin("OLD", with_place=False)
    await gateway.begin("NEW", with_place=False)
    connection.execute("UPDATE transactions SET created_at = now() - interval '2 minutes' WHERE id = 'OLD'")
    await gateway.mirror.round()
    assert await gateway.get("OLD") is None
    assert await gateway.get("NEW") is not None


async def test_transactions_of_remoting_clients_are_mirrored_until_their_end(metadata, connection):
    gateway = Gateway(metadata)
    names = ["GONE", "BACK", "PAID", "LATE", "LOST", "SOON"]
    gateway.halves.open = [listed(name) for name in names]
    await gateway.mirror.round()
    for name in names:
        row = await gateway.get(name)
        assert row is not None
        assert (row.origin, row.state, row.created_at) == (REMOTING, OPEN, datetime.fromtimestamp(1_700_000_000, UTC))
    gateway.halves.open = []
    gateway.halves.decisions = {"BACK": ROLLED_BACK, "PAID": COMMITTED}
    gateway.halves.given_up = {"LATE"}
    gateway.halves.committed = {"GONE"}
    connection.execute("UPDATE transactions SET seen_at = now() - interval '2 minutes' WHERE id <> 'SOON'")
    await gateway.mirror.round()
    states = {name: None if (row := await gateway.get(name)) is None else row.state for name in names}
    assert states == {
        "BACK": ROLLED_BACK,
        "PAID": COMMITTED,
        "LATE": EXPIRED,
        "GONE": COMMITTED,
        "LOST": None,
        "SOON": OPEN,
    }
    # An operator lets the broker check it again.
    gateway.halves.open = [listed("LATE", checks=0)]
    await gateway.mirror.round()
    row = await gateway.get("LATE")
    assert row is not None
    assert row.state == OPEN


async def test_a_half_message_of_another_group_does_not_change_a_transaction(metadata):
    gateway = Gateway(metadata)
    await gateway.begin("T1")
    gateway.halves.open = [listed("T1", group="OTHER"), listed("BAD", group="no group"), listed("")]
    await gateway.mirror.round()
    row = await gateway.get("T1")
    assert row is not None
    assert (row.half_queue_offset, row.state) == (1, OPEN)
    assert await gateway.get("BAD") is None


@pytest.mark.parametrize(("state", "decision"), [(COMMITTED, Decision.COMMIT), (ROLLED_BACK, Decision.ROLLBACK)])
async def test_a_check_of_a_decided_transaction_is_answered_from_postgres(metadata, state, decision):
    asker = FakeAsker(answer=state != COMMITTED)
    gateway = Gateway(metadata, asker)
    gateway.delivery.result = DeliveryResult(Ending.LATER, "away")
    await gateway.begin("T1")
    await gateway.decide("T1", state)
    assert await gateway.producers.answer(half("T1", checks=2)) is decision
    assert asker.asked == []
    row = await gateway.get("T1")
    assert row is not None
    assert row.checks == 2


@pytest.mark.parametrize(
    ("answers", "decision", "state"),
    [
        ((), Decision.UNKNOWN, OPEN),
        ((None, None), Decision.UNKNOWN, OPEN),
        ((None, True), Decision.COMMIT, COMMITTED),
        ((False, True), Decision.ROLLBACK, ROLLED_BACK),
    ],
)
async def test_a_check_of_an_open_transaction_asks_the_askers_in_their_order(metadata, answers, decision, state):
    askers = [FakeAsker(answer) for answer in answers]
    gateway = Gateway(metadata, *askers)
    await gateway.begin("T1")
    assert await gateway.producers.answer(half("T1", checks=3)) is decision
    row = await gateway.get("T1")
    assert row is not None
    assert (row.state, row.checks) == (state, 3)
    for asker in askers[:1]:
        (check,) = asker.asked
        assert (check.transaction, check.group, check.checks, check.message.body) == ("T1", GROUP, 3, b"paid")
    if answers == (False, True):
        assert askers[1].asked == []


async def test_a_check_that_is_not_of_this_transaction_is_not_answered(metadata):
    gateway = Gateway(metadata, FakeAsker(answer=True))
    await gateway.begin("T1")
    for other in (half("T2"), half("T1", group="OTHER"), half("T1", topic="OTHER")):
        assert await gateway.producers.answer(other) is Decision.UNKNOWN
    row = await gateway.get("T1")
    assert row is not None
    assert row.state == OPEN


async def test_transactions_are_deleted_a_while_after_their_end(metadata, connection):
    gateway = Gateway(metadata)
    for name in ("OPEN", "OLD", "YOUNG", "UNDELIVERED"):
        await gateway.begin(name)
    await gateway.decide("OLD")
    await gateway.decide("YOUNG")
    gateway.delivery.result = DeliveryResult(Ending.LATER, "away")
    await gateway.decide("UNDELIVERED")
    connection.execute("UPDATE transactions SET created_at = now() - interval '40 days'")
    connection.execute(
        "UPDATE transactions SET ended_at = now() - interval '31 days' WHERE id IN ('OLD', 'UNDELIVERED')"
    )
    await gateway.deliveries.tidy()
    assert await gateway.get("OLD") is None
    assert [await gateway.get(name) is not None for name in ("OPEN", "YOUNG", "UNDELIVERED")] == [True] * 3
