"""Unmodified RocketMQ clients against our name server and broker: Java 5.3.3's, mqadmin of 5.3.3 and 4.9.8, ali-ons."""

import asyncio
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gantry.client.consumer.rebalance import GroupMember
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.group import parse_tag_expression
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support import foreign
from tests.support.serviceprocess import ServiceProcess

COUNT = 10
TOPIC = "ForeignTopic"


class Cluster(NamedTuple):
    namesrv: str
    broker: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("foreign")
    namesrv_options = ("--listen", "127.0.0.1:0", "--data", str(folder / "namesrv"), "--metrics-port", "off")
    with ServiceProcess("namesrv", folder, *namesrv_options) as namesrv:
        options = (
            "--namesrv", namesrv.address, "--name", "broker-a", "--cluster", "DefaultCluster", "--listen", "127.0.0.1:0",
            "--store", str(folder / "store"), "--fast-port", "off", "--metrics-port", "off",
        )  # fmt: skip
        environment = {"GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": str(64 << 20)}
        with ServiceProcess("broker", folder, *options, environment=environment) as broker:
            yield Cluster(namesrv.address, broker.address)


@pytest.fixture(scope="module")
def sent(cluster: Cluster) -> list[dict[str, object]]:
    """The Java producer's result for each send; 2 * COUNT + 13 messages including the batch and the one-way one."""
    foreign.mqadmin(("updateTopic", "-n", cluster.namesrv, "-b", cluster.broker, "-t", TOPIC))
    return foreign.java_client("produce", cluster.namesrv, TOPIC, str(COUNT))


@pytest.mark.java
class TestJavaClient:
    """Apache RocketMQ's Java client 5.3.3."""

    def test_every_way_of_sending_is_acknowledged(self, sent: list[dict[str, object]]) -> None:
        assert [line for line in sent if line.get("status") != "SEND_OK"] == []
        assert sorted({str(line["how"]) for line in sent}) == ["async", "batch", "compressed", "ordered", "sync"]
        assert len(sent) == 2 * COUNT + 3

    def test_push_consumer_gets_the_messages_of_its_tags(self, cluster: Cluster, sent: list[dict[str, object]]) -> None:
        wanted = (
            COUNT // 2 + 1 + 10 + COUNT + 2
        )  # TagA: half of the synchronous sends, large, async, one-way, ordered. TagC: batch.
        lines = foreign.java_client("push", cluster.namesrv, TOPIC, "GID_push", "TagA || TagC", str(wanted))
        assert lines.pop() == {"all": True}
        assert {line["tag"] for line in lines} == {"TagA", "TagC"}
        assert len({line["message_id"] for line in lines}) == wanted
        assert max(len(line["body"]) for line in lines) == 20_000  # The client decompresses the compressed message.

    def test_push_consumer_with_sql_gets_what_its_expression_matches(
        self, cluster: Cluster, sent: list[dict[str, object]]
    ) -> None:
        wanted = COUNT // 2 + 1 + 10 + COUNT + 2  # As with the same tags.
        sql = "sql:TAGS IN ('TagA', 'TagC') AND UNIQ_KEY IS NOT NULL"
        lines = foreign.java_client("push", cluster.namesrv, TOPIC, "GID_sql", sql, str(wanted))
        assert lines.pop() == {"all": True}
        assert {line["tag"] for line in lines} == {"TagA", "TagC"}
        assert len({line["message_id"] for line in lines}) == wanted

    def test_lite_pull_consumer_gets_everything_and_commits(
        self, cluster: Cluster, sent: list[dict[str, object]]
    ) -> None:
        total = 2 * COUNT + 13
        lines = foreign.java_client("litepull", cluster.namesrv, TOPIC, "GID_lite", str(total))
        assert len({line["message_id"] for line in lines}) == total
        (progress,) = foreign.mqadmin(("consumerProgress", "-n", cluster.namesrv, "-g", "GID_lite"))
        assert "Consume TPS" in progress
        assert "Diff Total: 0" in progress

    def test_pull_consumer_reads_every_queue_in_order(self, cluster: Cluster, sent: list[dict[str, object]]) -> None:
        lines = foreign.java_client("pull", cluster.namesrv, TOPIC, "GID_pull")
        assert len(lines) == 2 * COUNT + 13
        for queue in {line["queue_id"] for line in lines}:
            offsets = [line["queue_offset"] for line in lines if line["queue_id"] == queue]
            assert offsets == list(range(len(offsets)))


@pytest.mark.java
def test_mqadmin_administers(cluster: Cluster) -> None:
    topic, group, address = "AdminTopic", "GID_admin", ("-n", cluster.namesrv)
    foreign.mqadmin(("updateTopic", *address, "-b", cluster.broker, "-t", topic, "-r", "4", "-w", "4"))
    sent = foreign.java_client("produce", cluster.namesrv, topic, "5")
    commands_and_words: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("updateSubGroup", *address, "-b", cluster.broker, "-g", group), ("success",)),
        (("clusterList", *address), ("DefaultCluster", "broker-a", cluster.broker, "V5_3_3")),
        (("topicList", *address), (topic, "TBW102")),
        (("topicRoute", *address, "-t", topic), (cluster.broker, '"readQueueNums":4')),
        (("topicStatus", *address, "-t", topic), ("#Max Offset", "broker-a")),
        (("topicClusterList", *address, "-t", topic), ("DefaultCluster",)),
        (("brokerStatus", *address, "-b", cluster.broker), ("putTps", "commitLogMaxOffset", "runtime")),
        (("queryMsgByKey", *address, "-t", topic, "-k", "key-3"), (str(sent[3]["message_id"]),)),
        (
            ("queryMsgById", *address, "-t", topic, "-i", str(sent[0]["stored_id"])),
            ("key-0", str(sent[0]["stored_id"])),
        ),
        (("queryMsgByUniqueKey", *address, "-t", topic, "-i", str(sent[1]["message_id"])), ("key-1",)),
        (("consumerProgress", *address), ("#Group",)),
        (("getBrokerConfig", *address, "-b", cluster.broker), ("flushDiskType", "SYNC_FLUSH")),
        (("printMsg", *address, "-t", topic), (str(sent[2]["message_id"]),)),
        (("statsAll", *address, "-t", topic), (topic, "#InMsg24Hour")),
        (("getNamesrvConfig", *address), ("scanNotActiveBrokerInterval",)),
        (("deleteTopic", *address, "-c", "DefaultCluster", "-t", topic), ("success",)),
    ]
    printed = foreign.mqadmin(*(command for command, _ in commands_and_words))
    for (command, words), text in zip(commands_and_words, printed, strict=True):
        for word in words:
            assert word in text, f"mqadmin {' '.join(command)} lacks {word!r}:\n{text[:2000]}"
    assert topic not in foreign.mqadmin(("topicList", *address))[0]


@pytest.mark.java
async def test_mqadmin_shows_the_state_of_our_consumer(cluster: Cluster) -> None:
    topic, group, address = "OwnTopic", "GID_own", ("-n", cluster.namesrv)
    made = ("updateTopic", *address, "-b", cluster.broker, "-t", topic, "-r", "2", "-w", "2")
    await asyncio.to_thread(foreign.mqadmin, made)
    engine = ClientEngine(ClientSettings(namesrv=(cluster.namesrv,)), clock=SystemClock(), rng=Rng())
    await engine.start()

    async def changed(assigned: object, revoked: object) -> None:
        pass

    client_id, wanted = "10.0.0.1@own", parse_tag_expression(topic, "red || blue", 1)
    member = GroupMember(engine, group, [wanted], client_id=client_id, on_change=changed)
    try:
        await member.start()
        status = ("consumerStatus", *address, "-g", group, "-i", client_id)
        (printed,) = await asyncio.to_thread(foreign.mqadmin, status)
        await member.close()
    finally:
        await engine.stop()
    assert re.search(r"PROP_CONSUME_TYPE\s+: CONSUME_PASSIVELY", printed), printed
    assert re.search(rf"Topic: {topic}\s+ClassFilter: false\s+SubExpression: red \|\| blue", printed), printed
    for queue in range(2):
        assert re.search(rf"{topic}\s+broker-a\s+{queue}\s+ProcessQueueInfo \[commitOffset=0", printed), printed


@pytest.mark.java
def test_mqadmin_of_4_9_deletes_a_group_with_its_offsets(cluster: Cluster) -> None:
    topic, group, broker = "OldAdminTopic", "GID_old_admin", ("-n", cluster.namesrv, "-b", cluster.broker)
    foreign.mqadmin(("updateTopic", *broker, "-t", topic), ("updateSubGroup", *broker, "-g", group))
    foreign.java_client("produce", cluster.namesrv, topic, "5")
    foreign.java_client("litepull", cluster.namesrv, topic, group, "5")
    progress = ("consumerProgress", "-n", cluster.namesrv, "-g", group)
    assert topic in foreign.mqadmin(progress)[0]
    printed = foreign.mqadmin_4_9("deleteSubGroup", *broker, "-g", group, "-r", "true")
    assert "success" in printed
    foreign.mqadmin(("updateSubGroup", *broker, "-g", group))
    assert topic not in foreign.mqadmin(progress)[0]


@pytest.mark.node
def test_ali_ons_produces_and_consumes(cluster: Cluster) -> None:
    foreign.node_peer()
    topic = "AliTopic"
    foreign.mqadmin(("updateTopic", "-n", cluster.namesrv, "-b", cluster.broker, "-t", topic))
    lines = foreign.ali_ons(cluster.namesrv, topic, "GID_ali", str(COUNT))
    assert [line for line in lines if "sent" in line and line["sent"] != "SEND_OK"] == []
    assert {line["received"] for line in lines if "received" in line} == {f"hello {i}" for i in range(COUNT)} | {50_000}
    assert lines[-1] == {"closed": True}
