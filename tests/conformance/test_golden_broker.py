"""Our broker serves stores that Apache RocketMQ wrote; each answer on the wire equals that of RocketMQ's broker."""

import hashlib
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gantry.model.record import iter_records
from gantry.remoting.bodies import (
    ConsumerOffsetWrapper,
    DelayOffsetWrapper,
    SubscriptionGroupWrapper,
    decode_topic_config,
)
from gantry.remoting.bodies.beans import TopicConfigBean
from gantry.remoting.bodies.fastjson import decode_json
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerprocess import BrokerProcess, Peer, peer_of

GOLDEN = Path(__file__).parent / "golden"
# The golden broker's settings: its broker.conf and its command-line switches.
REVIVE_OFFSETS = "rmq_sys_REVIVE_LOG_GoldenCluster@CID_RMQ_SYS_REVIVE_GROUP"
ENVIRONMENT = {
    "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": "262144",
    "GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE": "6000",
    "GANTRY_BROKER_MAX_HASH_SLOT_NUM": "500",
    "GANTRY_BROKER_MAX_INDEX_NUM": "2000",
    "GANTRY_BROKER_TIMER_WHEEL_ENABLE": "false",  # The messages that wait are due by now.
    "GANTRY_BROKER_FILE_RESERVED_TIME": "8760",
    "GANTRY_BROKER_MESSAGE_DELAY_LEVEL": " ".join(f"{seconds}s" for seconds in range(1, 19)),
    "GANTRY_BROKER_AUTO_CREATE_TOPIC_ENABLE": "false",
}
DAMAGED_QUEUE = ("GoldenNormal", "0")


class Served(NamedTuple):
    name: str
    broker: BrokerProcess
    expected: dict[str, Any]
    clean: dict[str, Any]


@pytest.fixture(scope="module", params=["clean", "crashed", "torn"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    clean = json.loads((GOLDEN / "expected.json").read_text())
    expected = clean if name == "clean" else json.loads((GOLDEN / f"expected-{name}.json").read_text())
    with BrokerProcess(folder, name="golden-a", environment=ENVIRONMENT) as broker:
        yield Served(name, broker, expected, clean)


@pytest.fixture
async def peer(served: Served) -> AsyncIterator[Peer]:
    async with peer_of(served.broker.address) as peer:
        yield peer


def queues_of(expected: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (topic, queue_id, queue)
        for topic, content in expected["topics"].items()
        for queue_id, queue in content["queues"].items()
    ]


async def pulled(peer: Peer, topic: str, queue_id: str, start: int) -> dict[int, tuple[int, str]]:
    """Return physical offset and body hash by queue offset."""
    found: dict[int, tuple[int, str]] = {}
    offset = start
    while True:
        answer = await peer.pull(topic, offset, queue_id=int(queue_id))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return found
        for message in iter_records(answer.body_bytes):
            body = message.inflated_body()
            found[message.queue_offset] = (message.physical_offset, hashlib.sha256(body).hexdigest())
        offset = int(answer.ext_fields["nextBeginOffset"])


async def test_every_queue_is_served_to_consumers(served: Served, peer: Peer) -> None:
    for topic, queue_id, queue in queues_of(served.expected):
        same = served.clean["topics"].get(topic, {}).get("queues", {}).get(queue_id, {"messages": []})
        wanted = {
            message["queueOffset"]: (message["commitLogOffset"], message["bodySha256"])
            for message in [*same["messages"], *queue["messages"]]
            if message["queueOffset"] < queue["max"]
        }
        found = await pulled(peer, topic, queue_id, queue["min"])
        # Apache RocketMQ truncated the torn store at the damage; our broker keeps the records after it.
        assert {offset: found.get(offset) for offset in wanted} == wanted, (topic, queue_id)
        assert served.name == "torn" or found.keys() == wanted.keys()


async def test_offsets_of_queues(served: Served, peer: Peer) -> None:
    for topic, queue_id, queue in queues_of(served.expected):
        ext = {"topic": topic, "queueId": queue_id}
        smallest = await peer.ask(RequestCode.GET_MIN_OFFSET, ext=ext)
        largest = await peer.ask(RequestCode.GET_MAX_OFFSET, ext=ext)
        assert smallest.ext_fields["offset"] == str(queue["min"])
        if served.name != "torn":
            assert largest.ext_fields["offset"] == str(queue["max"])


async def test_offsets_by_time(served: Served, peer: Peer) -> None:
    for case in served.expected["offsetByTime"]:
        ext = {
            "topic": case["topic"],
            "queueId": str(case["queueId"]),
            "timestamp": str(case["timestamp"]),
            "boundaryType": case["boundary"],
        }
        answer = await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=ext)
        assert answer.ext_fields == {"offset": str(case["offset"])}, case


async def test_messages_by_key_and_by_place(served: Served, peer: Peer) -> None:
    for case in served.expected["queryMessage"]:
        ext = {
            "topic": case["topic"],
            "key": case["key"],
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(2**63 - 1),
        }
        if case["kind"] == "uniq":
            ext["_UNIQUE_KEY_QUERY"] = "true"
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, ext=ext)
        found = [message.physical_offset for message in iter_records(answer.body_bytes)]
        if case["code"] == 0:
            assert found == case["commitLogOffsets"], case
        elif served.name == "clean":
            assert (answer.code, found) == (case["code"], []), case
    for case in served.expected["viewById"]:
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(case["commitLogOffset"])})
        assert hashlib.sha256(answer.body_bytes).hexdigest() == case["recordSha256"]


async def test_topics_groups_and_offsets_are_those_of_the_files(served: Served, peer: Peer) -> None:
    for topic, content in served.expected["topics"].items():
        answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": topic})
        if content.get("config") is None:
            continue
        wanted = TopicConfigBean.decode(json.dumps(content["config"]).encode()).to_model(topic)
        assert decode_topic_config(answer.body_bytes) == wanted
    if served.name != "clean":
        return
    answer = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    found = ConsumerOffsetWrapper.decode(answer.body_bytes)
    wanted_offsets = ConsumerOffsetWrapper.decode(served.expected["allConsumerOffset"].encode())
    assert (found.offset_table, found.data_version) == (wanted_offsets.offset_table, wanted_offsets.data_version)
    answer = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert DelayOffsetWrapper.decode(answer.body_bytes) == DelayOffsetWrapper.decode(
        served.expected["allDelayOffset"].encode()
    )
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    groups = SubscriptionGroupWrapper.decode(answer.body_bytes).subscription_group_table
    wanted_groups = SubscriptionGroupWrapper.decode(served.expected["allSubscriptionGroup"].encode())
    assert wanted_groups.subscription_group_table.items() <= groups.items()


async def test_the_files_are_still_readable_by_rocketmq_after_a_stop(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    config = tmp_path / "store" / "config"
    names = ("topics.json", "subscriptionGroup.json", "delayOffset.json", "consumerFilter.json")
    before = {name: config.joinpath(name).read_bytes() for name in names}
    offsets_before = ConsumerOffsetWrapper.decode(config.joinpath("consumerOffset.json").read_bytes()).offset_table
    # The settings name the broker and its cluster as the golden one, so that no system topic or group has to be added.
    with BrokerProcess(tmp_path, "--cluster", "GoldenCluster", name="golden-a", environment=ENVIRONMENT) as broker:
        async with peer_of(broker.address) as peer:
            assert (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
        assert broker.terminate() == 0
    after = {name: config.joinpath(name).read_bytes() for name in names}
    assert [name for name in names if after[name] != before[name]] == []
    # The broker has read the check points and acknowledgements of pops, so only the offsets of their reader move ahead.
    offsets = ConsumerOffsetWrapper.decode(config.joinpath("consumerOffset.json").read_bytes()).offset_table
    assert offsets.keys() == offsets_before.keys()
    assert [key for key in offsets if offsets[key] != offsets_before[key]] == [REVIVE_OFFSETS]
    assert all(offsets[REVIVE_OFFSETS][queue] >= at for queue, at in offsets_before[REVIVE_OFFSETS].items())
    assert decode_json(dict[str, Any], after["topics.json"])["dataVersion"]["counter"] == 47
