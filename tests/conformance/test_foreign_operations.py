"""Operators' tools and producers of Apache RocketMQ against drained brokers and removals on demand."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.model.messageid import decode_stored_id
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of

TOPIC = "OperatedTopic"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    folder: Path = tmp_path_factory.mktemp("operations")
    with (
        NamesrvProcess(folder) as namesrv,
        BrokerProcess(folder / "a", namesrv=namesrv.address, name="broker-a") as one,
        BrokerProcess(folder / "b", namesrv=namesrv.address, name="broker-b") as two,
    ):
        for broker in (one, two):
            foreign.mqadmin(("updateTopic", "-n", namesrv.address, "-b", broker.address, "-t", TOPIC))
        yield namesrv.address, one.address, two.address


async def sends(broker: str) -> int:
    """Return the code with which a broker answers a message for one of its queues."""
    async with peer_of(broker) as peer:
        return int((await peer.send(TOPIC)).code)


@pytest.mark.java
def test_java_producers_use_the_other_broker_while_one_is_drained(cluster: tuple[str, str, str]) -> None:
    namesrv, one, two = cluster
    change = ("updateBrokerConfig", "-n", namesrv, "-b", one, "-k", "brokerPermission", "-v")
    (drained,) = foreign.mqadmin((*change, "4"))
    assert "update broker config success" in drained
    assert asyncio.run(sends(one)) == ResponseCode.NO_PERMISSION
    sent = foreign.java_client("produce", namesrv, TOPIC, "4")
    assert {line["status"] for line in sent} == {"SEND_OK"}
    hosts = {str(decode_stored_id(str(line["stored_id"]).partition(",")[0])[0]) for line in sent}
    assert hosts == {two}
    foreign.mqadmin((*change, "6"))
    assert asyncio.run(sends(one)) == ResponseCode.SUCCESS


@pytest.mark.java
def test_mqadmin_removes_old_data_and_shows_counters(cluster: tuple[str, str, str]) -> None:
    namesrv, one, _ = cluster
    outputs = foreign.mqadmin(
        ("deleteExpiredCommitLog", "-n", namesrv, "-b", one),
        ("cleanExpiredCQ", "-n", namesrv, "-b", one),
        ("cleanUnusedTopic", "-n", namesrv, "-b", one),
    )
    assert ["success" in output for output in outputs] == [True, True, True], outputs

    async def refused() -> str:
        async with peer_of(one) as peer:
            return str((await peer.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)).remark)

    assert "static topics are left out" in asyncio.run(refused())
