"""Name server, broker and gateway on an IPv6 address only."""

import socket
from pathlib import Path

import httpx
import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.group import parse_tag_expression
from gantry.model.message import Message, MessageQueue
from gantry.model.record import decode_record
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import SMALL_STORE, peer_of, wait_until
from tests.support.postgres import PostgresServer
from tests.support.serviceprocess import ServiceProcess

QUEUE = MessageQueue("SIX", "broker-a", 0)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def namesrv(folder: Path) -> ServiceProcess:
    options = ("--listen", "[::1]:0", "--data", str(folder / "namesrv"), "--metrics-port", "off")
    return ServiceProcess("namesrv", folder, *options)


def broker(folder: Path, namesrv_address: str) -> ServiceProcess:
    return ServiceProcess(
        "broker",
        folder,
        *("--listen", "[::1]:0", "--namesrv", namesrv_address, "--name", "broker-a", "--cluster", "C"),
        *("--fast-port", "off", "--metrics-port", "off", "--store", str(folder / "store")),
        environment=dict(SMALL_STORE),
    )


def gateway(folder: Path, namesrv_address: str, database_url: str) -> ServiceProcess:
    return ServiceProcess(
        "gateway",
        folder,
        *("--listen", "[::1]:0", "--namesrv", namesrv_address, "--data", str(folder / "gateway")),
        *("--first-key-file", str(folder / "key")),
        environment={"GANTRY_DATABASE_URL": database_url},
    )


async def test_messages_go_in_and_out(tmp_path: Path) -> None:
    with namesrv(tmp_path) as names, broker(tmp_path, names.address) as running:
        assert names.address.startswith("[::1]:")
        assert running.address.startswith("[::1]:")
        engine = ClientEngine(ClientSettings(namesrv=(names.address,)), clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            async with peer_of(running.address) as peer:
                await Admin(engine).create_topic(TopicConfig("SIX", 1, 1))

                async def is_known() -> bool:
                    return await peer.route("SIX", names.address) == [running.address]

                await wait_until(is_known, "the route")
            producer = Producer(engine, "SIX_PRODUCER")
            await producer.start()
            sent = await producer.send(Message("SIX", b"over six", {}), queue=QUEUE)
            pulled = await PullConsumer(engine, "SIX_READERS").pull(
                QUEUE, 0, max_messages=32, expression=parse_tag_expression("SIX", "*", 1), suspend_ms=0
            )
            message = decode_record(bytes(pulled.body))
            assert (message.body, message.stored_id) == (b"over six", sent.stored_id)
            assert str(message.store_host) == running.address
            assert message.born_host.ip == "::1"
        finally:
            await engine.stop()


async def test_a_gateway_serves_messages_over_ipv6(tmp_path: Path, own_postgres: PostgresServer) -> None:
    with (
        namesrv(tmp_path) as names,
        broker(tmp_path, names.address),
        gateway(tmp_path, names.address, own_postgres.url) as running,
    ):
        url = running.facts["url"]
        assert url.startswith("http://[::1]:")
        headers = {"Authorization": f"Bearer {(tmp_path / 'key').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20, trust_env=False) as http:
            assert (await http.put("/v1/topics/SIX", json={})).status_code == 201
            sent = (await http.post("/v1/topics/SIX/messages", json={"body": "over six"})).json()
            assert sent["outcome"] == "stored"
            found = (await http.get(f"/v1/messages/{sent['stored_id']}")).json()
            assert (found["body"], found["born_host"].startswith("[::1]:")) == ("over six", True)
