"""Request 25 saves no value that the next start rejects: a broker that was changed at run time starts again."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.remoting.bodies import decode_properties_text
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.fault.brokers import IN_A_HURRY, NEVER_FULL, SMALL_FILES, as_environment
from tests.support.brokerprocess import Peer, peer_of
from tests.support.ports import free_base
from tests.support.serviceprocess import ServiceProcess

# Settings whose value is wrong by itself, or together with those of the environment below.
WRONG = {
    "brokerName": "a b",
    "brokerId": "1",
    "brokerRole": "SLAVE",
    "regionId": "x y",
    "brokerPermission": "8",
    "listenPort": "70000",
    "haListenPort": "-1",
    "fastListenPort": "soon",
    "metricsPort": "soon",
    "namesrvAddr": "127.0.0.1",
    "defaultTopicQueueNums": "0",
    "registerBrokerTimeoutMills": "9" * 400,
    "flushConsumerOffsetInterval": "2147483648",
    "fileReservedTime": "-1",
    "drainTimeoutMs": "-1",
    "msgTraceTopicName": "",
    "deleteWhen": "25",
    "messageDelayLevel": "1 minute",
    "flushDiskType": "NEVER",
    "diskMaxUsedSpaceRatio": "101",
    "maxHashSlotNum": "0",
    "traceOn": "perhaps",
    "tlsServerMode": "enforcing",
    "bindAddress": "9" * 5000,
    # Only a start detects these.
    "brokerIP1": "no.such.host.invalid",
    "metricsHost": "203.0.113.9",
    "mappedFileSizeCommitLog": str(SMALL_FILES["mapped_file_size_commit_log"] * 2),
    "mappedFileSizeConsumeQueue": str(SMALL_FILES["mapped_file_size_consume_queue"] * 2),
    "maxIndexNum": "5000",
}


def without_command_line(folder: Path, **changes: object) -> ServiceProcess:
    """A broker that gets settings from the environment only; a command line would override saved settings."""
    settings = {
        **SMALL_FILES, **IN_A_HURRY, **NEVER_FULL, "store_path_root_dir": folder / "store", "listen_port": 0,
        "fast_listen_port": "off", "metrics_port": 0, **changes,
    }  # fmt: skip
    return ServiceProcess("broker", folder, environment=as_environment(**settings))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServiceProcess]:
    with without_command_line(tmp_path) as process:
        yield process


async def change(peer: Peer, **settings: str) -> tuple[int, str]:
    body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    return answer.code, str(answer.remark)


async def test_a_setting_that_a_start_would_refuse_is_refused_and_the_broker_restarts(process: ServiceProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wrong = [*WRONG.items(), ("bindAddress", "0.0.0.0"), ("listenPort", port), ("metricsPort", port)]
        async with peer_of(process.address) as peer:
            for name, value in wrong:
                code, remark = await change(peer, **{name: value, "fileReservedTime": value if "Res" in name else "9"})
                assert code == ResponseCode.INVALID_PARAMETER, f"{name}={value[:50]}: {code} {remark}"
                field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
                assert field.replace("_i_p1", "_ip1") in remark, f"{name}={value[:50]}: {remark}"
                assert value[:20] in remark or "bits" in remark, f"{name}={value[:50]}: {remark}"
        process.kill()
        process.start()
    async with peer_of(process.address) as peer:
        shown = decode_properties_text((await peer.ask(RequestCode.GET_BROKER_CONFIG)).body_bytes)
        assert shown["fileReservedTime"] == "72", "a refused request changes nothing"


async def test_values_that_fit_alone_and_not_together_are_refused(process: ServiceProcess) -> None:
    async with peer_of(process.address) as peer:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        assert (await change(peer, fastListenPort=port))[0] == 0
        code, remark = await change(peer, metricsPort=port)
        assert (code, remark) == (29, f"metrics_port: {port}: fast_listen_port is the same port")
        own = process.address.rpartition(":")[2]
        assert (await change(peer, fastListenPort="off"))[0] == 0
        assert (await change(peer, metricsPort=own))[0] == ResponseCode.SUCCESS, "free at the next start"
    process.kill()
    process.start()
    assert process.facts["metrics"].endswith(f":{own}")


async def test_the_brokers_own_port_may_go_to_another_host(tmp_path: Path) -> None:
    port = free_base(range(8_000, 8_900, 5), lambda base: [base])
    with without_command_line(tmp_path, listen_port=port, broker_ip1="127.0.0.1") as process:
        async with peer_of(process.address) as peer:
            assert (await change(peer, bindAddress="0.0.0.0"))[0] == 0
            assert (await change(peer, bindAddress="203.0.113.9"))[0] == ResponseCode.INVALID_PARAMETER
        process.kill()
        process.start()
        assert process.address == f"127.0.0.1:{port}"


async def test_values_of_the_command_line_are_not_checked_for_the_next_start(tmp_path: Path) -> None:
    environment = as_environment(**SMALL_FILES, **NEVER_FULL)
    store = ("--store", str(tmp_path / "store"), "--metrics-port", "off")
    given = ("--listen", "127.0.0.1:0", "--fast-port", "off")
    with (
        ServiceProcess("broker", tmp_path, *store, *given, environment=environment) as process,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        async with peer_of(process.address) as peer:
            assert (await change(peer, listenPort=str(taken.getsockname()[1])))[0] == 0
            assert (await change(peer, listenPort="65535"))[0] == 29, "wrong whatever is above it"
        process.kill()
        process.start()
