"""Transactions of the client engine against a real name server and a broker that is killed in between."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.client.sendrequest import SendResult
from gantry.client.settings import ClientSettings
from gantry.client.transactionchecks import Decision
from gantry.client.transactions import Execute, TransactionProducer
from gantry.model.message import Message, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of, wait_until

FAST = {
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "500",
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "500",
    "GANTRY_BROKER_TRANSACTION_OP_BATCH_INTERVAL": "200",
    "GANTRY_BROKER_REGISTER_NAME_SERVER_PERIOD": "1000",
}


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path / "namesrv") as process:
        yield process


@asynccontextmanager
async def producer_of(namesrv: str, decisions: dict[bytes, Decision]) -> AsyncIterator[TransactionProducer]:
    """A producer that answers checks from a table; a body that is not in it stays open."""

    async def check(half: StoredMessage) -> Decision:
        return decisions.get(half.body, Decision.UNKNOWN)

    settings = ClientSettings(namesrv=(namesrv,), poll_namesrv_interval_ms=500, heartbeat_interval_ms=1000)
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    producer = TransactionProducer(engine, "tpg", check)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()
        await engine.stop()


async def prepare(peer: Peer, producer: TransactionProducer) -> None:
    """Create the topic, and wait until the producer has its route."""
    await peer.make_topic("T", queues=1)

    async def is_routed() -> bool:
        try:
            return bool((await producer._engine.publish_info("T", refresh=True)).queues)
        except ClientError:
            return False

    await wait_until(is_routed, "route of the topic")


def deciding(decision: Decision) -> Execute:
    """Return an application's part that decides at once."""

    async def execute(half: SendResult) -> Decision:
        return decision

    return execute


async def test_decisions_and_checks_through_a_kill(namesrv: NamesrvProcess, tmp_path: Path) -> None:
    decisions: dict[bytes, Decision] = {}
    with BrokerProcess(tmp_path, namesrv=namesrv.address, environment=FAST) as broker:
        async with peer_of(broker.address) as peer, producer_of(namesrv.address, decisions) as producer:
            await prepare(peer, producer)
            await producer.send_transaction(Message("T", b"committed"), deciding(Decision.COMMIT))
            await producer.send_transaction(Message("T", b"rolled back"), deciding(Decision.ROLLBACK))
            awaited = await producer.send_half(Message("T", b"awaited"))
            await producer.decide(awaited, Decision.COMMIT)
            await producer.decide(awaited, Decision.COMMIT)
            await producer.send_transaction(Message("T", b"by check"), deciding(Decision.UNKNOWN))
            decisions[b"by check"] = Decision.COMMIT

            async def is_checked() -> bool:
                return b"by check" in await peer.read_all()

            await wait_until(is_checked, "the check decides")
            await producer.send_transaction(Message("T", b"after the kill"), deciding(Decision.UNKNOWN))
        port = int(broker.address.rpartition(":")[2])
        broker.kill()
    with BrokerProcess(tmp_path, namesrv=namesrv.address, environment=FAST, port=port) as broker:
        decisions[b"after the kill"] = Decision.COMMIT
        async with peer_of(broker.address) as peer, producer_of(namesrv.address, decisions) as producer:
            await prepare(peer, producer)

            async def is_decided() -> bool:
                return b"after the kill" in await peer.read_all()

            await wait_until(is_decided, "the check decides after the kill")
            await asyncio.sleep(2)  # More checks would come now.
            bodies = await peer.read_all()
            assert set(bodies) == {b"committed", b"awaited", b"by check", b"after the kill"}
            assert b"rolled back" not in bodies
            # A kill between a message and its op message repeats the commit.
            assert all(bodies.count(body) <= 2 for body in bodies)
