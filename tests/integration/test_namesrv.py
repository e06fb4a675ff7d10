"""The name server as a process, as brokers, clients and operators see it."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gantry.client.engine import ClientEngine
from gantry.client.errors import NoRouteError
from gantry.client.settings import ClientSettings
from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.aio import RemotingClient
from gantry.remoting.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.kv import GetKvConfigHeader, PutKvConfigHeader
from gantry.remoting.headers.namesrv import GetRouteInfoHeader, RegisterBrokerHeader
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.scriptedpeer import ScriptedPeer
from tests.support.serviceprocess import ServiceProcess

BROKER = RegisterBrokerHeader(
    broker_name="broker-a",
    broker_addr="127.0.0.1:10911",
    cluster_name="C",
    ha_server_addr="127.0.0.1:10912",
    broker_id=0,
)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[ServiceProcess]:
    with start(tmp_path) as process:
        yield process


def start(tmp_path: Path, *arguments: str, **environment: str) -> ServiceProcess:
    folder = str(tmp_path / "data")
    return ServiceProcess(
        "namesrv", tmp_path, "--listen", "127.0.0.1:0", "--data", folder, *arguments, environment=environment
    )


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


def registration(*topics: str, header: RegisterBrokerHeader = BROKER) -> RemotingCommand:
    table = {name: TopicConfig(name, 4, 4) for name in topics}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(0, 1, 1))).encode()
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body=body)


def asking_route(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic))


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the other process has no event to wait for.
            await asyncio.sleep(0.02)


async def test_a_registered_broker_is_routed_to_until_its_connection_ends(namesrv: ServiceProcess, client):
    broker = RemotingClient(clock=SystemClock())
    answer = await broker.invoke(namesrv.address, registration("T1", "T2"), timeout_ms=3_000)
    assert answer.code == 0
    route = await client.invoke(namesrv.address, asking_route("T1"), timeout_ms=3_000)
    assert (route.code, b'"0":"127.0.0.1:10911"' in route.body_bytes) == (0, True)
    await broker.close()

    async def is_gone() -> bool:
        return (await client.invoke(namesrv.address, asking_route("T1"), timeout_ms=3_000)).code == 17

    await eventually(is_gone)


async def test_a_silent_broker_expires_within_a_scan(tmp_path: Path, client):
    settings = {"GANTRY_NAMESRV_SCAN_NOT_ACTIVE_BROKER_INTERVAL": "50"}
    with start(tmp_path, **settings) as namesrv:
        header = RegisterBrokerHeader.from_ext({**BROKER.to_ext(), "heartbeatTimeoutMillis": "300"})
        broker = RemotingClient(clock=SystemClock())
        await broker.invoke(namesrv.address, registration("T1", "T2", header=header), timeout_ms=3_000)

        async def is_gone() -> bool:
            return (await client.invoke(namesrv.address, asking_route("T1"), timeout_ms=3_000)).code == 17

        assert not await is_gone()
        await eventually(is_gone)
        await broker.close()


async def test_the_client_engine_gets_its_routes(namesrv: ServiceProcess, client):
    await client.invoke(namesrv.address, registration("T1", "T2"), timeout_ms=3_000)
    settings = ClientSettings(namesrv=("127.0.0.1:1", namesrv.address))
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        info = await engine.publish_info("T1")
        assert len(info.queues) == 4
        assert info.masters == {"broker-a": "127.0.0.1:10911"}
        with pytest.raises(NoRouteError):
            await engine.route("Nowhere")
        assert set((await engine.cluster_info()).broker_addr_table) == {"broker-a"}
    finally:
        await engine.stop()


async def test_key_values_and_changed_settings_survive_a_restart(tmp_path: Path, client):
    put = PutKvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
    with start(tmp_path) as namesrv:
        answer = await client.invoke(
            namesrv.address, RemotingCommand.request(RequestCode.PUT_KV_CONFIG, put), timeout_ms=3_000
        )
        assert answer.code == 0
        change = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
        assert (await client.invoke(namesrv.address, change, timeout_ms=3_000)).code == 0
        namesrv.kill()
    saved = (tmp_path / "data" / "kvConfig.json").read_bytes()
    assert saved == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T1":"broker-a:4"}}}'
    with start(tmp_path) as namesrv:
        get = GetKvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="T1")
        answer = await client.invoke(
            namesrv.address, RemotingCommand.request(RequestCode.GET_KV_CONFIG, get), timeout_ms=3_000
        )
        assert answer.ext_fields == {"value": "broker-a:4"}
        await client.invoke(namesrv.address, registration("T1", "T2"), timeout_ms=3_000)
        route = await client.invoke(namesrv.address, asking_route("T1"), timeout_ms=3_000)
        assert json.loads(route.body_bytes)["orderTopicConf"] == "broker-a:4"


async def test_members_of_a_set_are_notified_when_its_lowest_member_changes(tmp_path: Path, client):
    slave = ScriptedPeer({})
    address = await slave.start()
    with start(tmp_path, GANTRY_NAMESRV_NOTIFY_MIN_BROKER_ID_CHANGED="true") as namesrv:
        header = RegisterBrokerHeader.from_ext({**BROKER.to_ext(), "brokerAddr": address, "brokerId": "1"})
        await client.invoke(namesrv.address, registration("T1", "T2", header=header), timeout_ms=3_000)
        await client.invoke(namesrv.address, registration("T1", "T2"), timeout_ms=3_000)

        async def is_told() -> bool:
            return any(request.code == 905 for request in slave.requests)

        await eventually(is_told)
    await slave.stop()


async def test_bytes_that_are_no_frame_end_only_their_connection(namesrv: ServiceProcess, client):
    host, _, port = namesrv.address.rpartition(":")
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x04\x02\x00\x00\x00",
        b"\x00\x00\x00\x10\x00\x00\x00\x0cnot a header",
        b"\xff" * 64,
        bytes(64),
    ):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(data)
            assert raw.recv(4096) == b""
    assert (await client.invoke(namesrv.address, asking_route("T"), timeout_ms=3_000)).code == 17


async def test_no_request_without_header_or_body_ends_the_server(namesrv: ServiceProcess, client):
    for code in map(int, RequestCode):
        request = RemotingCommand.request(code, body=b"\x00garbage")
        answer = await client.invoke(namesrv.address, request, timeout_ms=3_000)
        assert answer.code in (0, 1, 3)
        if answer.code == 3:
            assert answer.remark == f" request type {code} not supported"
        if answer.code == 1:
            assert answer.remark


async def test_metrics_are_shown_beside_the_port(namesrv: ServiceProcess, client):
    await client.invoke(namesrv.address, registration("T1", "T2"), timeout_ms=3_000)
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"http://{namesrv.facts['metrics']}/metrics")).text
    assert "gantry_namesrv_topics 2.0" in text
    assert 'gantry_namesrv_requests_total{code="103",response="0"} 1.0' in text


def test_sigterm_ends_it_with_code_0(namesrv: ServiceProcess):
    assert namesrv.terminate() == 0
    assert '"event": "stopped"' in namesrv.log


def refused(tmp_path: Path, *arguments: str, **environment: str) -> str:
    """Start a name server that can't start; return the one line that it prints."""
    process = ServiceProcess("namesrv", tmp_path, *arguments, environment=environment)
    process.launch()
    assert process.wait() == 1
    lines = [line for line in process.log.splitlines() if not line.startswith("{")]
    assert all(line.startswith("namesrv: ") for line in lines), process.log
    return lines[-1]


def test_a_port_in_use_is_one_line(namesrv: ServiceProcess, tmp_path: Path):
    line = refused(tmp_path / "second", "--listen", namesrv.address, "--metrics-port", "off")
    assert re.match(rf"namesrv: namesrv can't listen on {namesrv.address}: .*in use.*", line, re.IGNORECASE)


def test_a_folder_of_another_name_server_is_refused(namesrv: ServiceProcess, tmp_path: Path):
    """Two name servers on one folder once overwrote each other's settings and key values."""
    folder = tmp_path / "data"
    line = refused(tmp_path / "second", "--listen", "127.0.0.1:0", "--data", str(folder), "--metrics-port", "off")
    assert line == f"namesrv: {folder}: another name server uses this folder; choose another one with --data"
    namesrv.kill()
    namesrv.start()


def test_a_bad_setting_is_named_in_one_line(tmp_path: Path):
    assert "listen: 'nowhere'" in refused(tmp_path, "--listen", "nowhere")
    assert "GANTRY_NAMESRV_TYPO" in refused(tmp_path, GANTRY_NAMESRV_TYPO="1")
    assert "no such settings file" in refused(tmp_path, "--config", str(tmp_path / "missing.toml"))
    (tmp_path / "file").write_text("")
    assert "choose another folder with --data" in refused(tmp_path, "--data", str(tmp_path / "file" / "data"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("kvConfig.json", '{"configTable":', "kvConfig.json: can't be read"),
        ("namesrv-settings.json", "[]", "namesrv-settings.json: can't be read"),
        ("namesrv-settings.json", '{"no_such":"1"}', "no_such: no such setting"),
        ("namesrv-settings.json", '{"wait_seconds_for_service":"soon"}', "wait_seconds_for_service"),
    ],
)
def test_a_damaged_file_stops_the_start_and_stays_unchanged(tmp_path: Path, name: str, content: str, said: str):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_text(content)
    assert said in refused(tmp_path, "--listen", "127.0.0.1:0", "--data", str(folder), "--metrics-port", "off")
    assert (folder / name).read_text() == content
