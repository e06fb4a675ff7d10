"""Unmodified programs of foreign clients against our broker: delay, order, transactions, retry, request-reply."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of

TOPICS = (
    *("DelayTopic", "OrderTopic", "TransactionTopic", "RetryTopic", "RequestTopic", "UnansweredTopic"),
    *("OnsDelayTopic", "OnsOrderTopic", "OnsTransactionTopic", "AliTopic"),
)
GROUPS = ("GID_order", "GID_retry_1", "GID_retry_2")
ALI_GROUP = "GID_ali_features"
QUICK_CHECKS = {
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "2000",
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "1000",
}
LATE_MS_MAX = 10_000  # The machine may be busy. The tests in virtual time are exact.
Line = dict[str, Any]
Dead = dict[str, list[bytes]]


class Cluster(NamedTuple):
    namesrv: str
    broker: str


class Printed:
    """The lines that programs printed."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def lines(self, program: str, event: str) -> list[Line]:
        """Return the lines of one kind."""
        return [line for line in self._lines if line["program"] == program and line["event"] == event]

    def bodies(self, program: str, event: str) -> list[str]:
        """Return the bodies of the lines of one kind."""
        return [line["body"] for line in self.lines(program, event)]


async def make_topics_and_groups(broker: str) -> None:
    """Make them as an administrator does, so that clients find the retry topics at their start."""
    async with peer_of(broker) as peer:
        for topic in TOPICS:
            await peer.make_topic(topic)
        for group in (*GROUPS, ALI_GROUP):
            body = b'{"groupName":"%s"}' % group.encode()
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


async def read_dead_letters(broker: str) -> Dead:
    async with peer_of(broker) as peer:
        return {group: await read_queue(peer, f"%DLQ%{group}") for group in GROUPS}


async def read_queue(peer: Peer, topic: str) -> list[bytes]:
    answer = await peer.pull(topic)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in iter_records(answer.body_bytes)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("features")
    with (
        NamesrvProcess(folder) as namesrv,
        BrokerProcess(folder, namesrv=namesrv.address, environment=QUICK_CHECKS) as broker,
    ):
        asyncio.run(make_topics_and_groups(broker.address))
        yield Cluster(namesrv.address, broker.address)


@pytest.fixture(scope="module")
def ran(cluster: Cluster) -> Printed:
    """All programs have run side by side in one virtual machine."""
    return Printed(foreign.java_features(cluster.namesrv, "delay", "order", "transaction", "retry", "request"))


@pytest.fixture(scope="module")
def dead(cluster: Cluster, ran: Printed) -> Dead:
    """The dead letters of each group."""
    # A new dead-letter queue is for writing only.
    readable = ("updateTopicPerm", "-n", cluster.namesrv, "-b", cluster.broker, "-p", "6")
    foreign.mqadmin(*((*readable, "-t", f"%DLQ%{group}") for group in GROUPS))
    return asyncio.run(read_dead_letters(cluster.broker))


@pytest.fixture(scope="module")
def ons(cluster: Cluster) -> Printed:
    """The program of Alibaba Cloud's client has run."""
    return Printed(foreign.ons_client(cluster.namesrv))


@pytest.fixture(scope="module")
def ali(cluster: Cluster) -> Printed:
    """The program of npm's client has run."""
    return Printed(foreign.ali_ons_features(cluster.namesrv, "AliTopic", ALI_GROUP))


@pytest.mark.java
class TestJavaClient:
    """Apache RocketMQ's Java client 5.3.3."""

    def test_delayed_messages_come_at_their_times_and_a_recalled_one_never(self, ran: Printed) -> None:
        assert {line["status"] for line in ran.lines("delay", "sent")} == {"SEND_OK"}
        assert [line["is_same"] for line in ran.lines("delay", "recalled")] == [True]
        due_ms = {line["body"]: line["due_ms"] for line in ran.lines("delay", "sent")}
        received = ran.lines("delay", "received")
        assert sorted(line["body"] for line in received) == sorted(set(due_ms) - {"recalled"})
        for line in received:
            late_ms = line["at_ms"] - due_ms[line["body"]]
            assert 0 <= late_ms <= LATE_MS_MAX, f"{line['body']} came {late_ms} ms after its time"

    def test_a_suspended_queue_keeps_its_order_and_the_others_go_on(self, ran: Printed) -> None:
        bodies = ran.bodies("order", "received")
        assert [body for body in bodies if body[0] == "0"] == [f"0:{number}" for number in range(8)]
        assert [body for body in bodies if body[0] == "1"] == [f"1:{number}" for number in range(8) if number != 5]
        assert [body for body in bodies if body[0] == "2"] == [f"2:{number}" for number in range(8)]
        suspended = [line for line in ran.lines("order", "suspended") if line["body"] == "0:3"]
        assert [line["times"] for line in suspended] == [0, 1]
        assert bodies.index("2:7") < bodies.index("0:4"), "a queue waited for another one"

    def test_an_ordered_message_that_always_fails_becomes_a_dead_letter(self, ran: Printed, dead: Dead) -> None:
        failed = [line["times"] for line in ran.lines("order", "suspended") if line["body"] == "1:5"]
        assert failed == [0, 1, 2]
        assert dead["GID_order"] == [b"1:5"]

    def test_only_committed_transactions_are_delivered(self, ran: Printed) -> None:
        assert {line["status"] for line in ran.lines("transaction", "sent")} == {"SEND_OK"}
        committed = ["COMMIT_MESSAGE", "UNKNOW COMMIT_MESSAGE", "UNKNOW UNKNOW COMMIT_MESSAGE"]
        received = ran.lines("transaction", "received")
        assert sorted(line["body"] for line in received) == committed
        assert {(line["body"], line["keys"], line["tag"]) for line in received} == {
            (body, f"key {len(body)}", "TagT") for body in committed
        }

    def test_a_producer_is_asked_until_it_has_decided(self, ran: Printed) -> None:
        checks = [(line["body"], line["times"]) for line in ran.lines("transaction", "checked")]
        assert sorted(checks) == [
            ("UNKNOW COMMIT_MESSAGE", "1"),
            ("UNKNOW ROLLBACK_MESSAGE", "1"),
            ("UNKNOW UNKNOW COMMIT_MESSAGE", "1"),
            ("UNKNOW UNKNOW COMMIT_MESSAGE", "2"),
        ]
        assert {line["topic"] for line in ran.lines("transaction", "checked")} == {"TransactionTopic"}

    @pytest.mark.parametrize(("group", "gaps_s"), [("GID_retry_1", [10]), ("GID_retry_2", [1, 1])])
    def test_a_message_that_always_fails_comes_again_and_then_is_a_dead_letter(
        self, ran: Printed, dead: Dead, group: str, gaps_s: list[int]
    ) -> None:
        """Without a level, the broker takes the third one: 10 s."""
        tries = [line for line in ran.lines("retry", group) if line["body"] == "always"]
        assert [line["times"] for line in tries] == list(range(len(gaps_s) + 1))
        assert {line["topic"] for line in tries} == {"RetryTopic"}
        assert len({line["message_id"] for line in tries}) == 1
        for before, after, gap_s in zip(tries, tries[1:], gaps_s, strict=False):
            gap_ms = after["at_ms"] - before["at_ms"]
            assert 1000 * gap_s <= gap_ms <= 1000 * gap_s + LATE_MS_MAX
        assert dead[group] == [b"always"]

    def test_a_message_that_fails_once_comes_once_more(self, ran: Printed) -> None:
        assert [line["times"] for line in ran.lines("retry", "GID_retry_1") if line["body"] == "once"] == [0]
        assert [line["times"] for line in ran.lines("retry", "GID_retry_2") if line["body"] == "once"] == [0, 1]

    def test_the_client_that_asked_gets_the_reply_or_a_time_out(self, ran: Printed) -> None:
        assert not ran.lines("request", "error")
        assert {line["status"] for line in ran.lines("request", "answered")} == {"SEND_OK"}
        replies = {line["body"]: line["reply"] for line in ran.lines("request", "replied")}
        assert replies == {f"request {number}": f"reply to request {number}" for number in range(3)}
        assert ran.bodies("request", "timed out") == ["request 3"]


@pytest.mark.java
class TestOnsClient:
    """Alibaba Cloud's Java client 1.8.8, which has classes of its own for order and transactions."""

    def test_delayed_messages_come_at_their_times(self, ons: Printed) -> None:
        sent = {line["body"]: line["at_ms"] for line in ons.lines("delay", "sending")}
        received = ons.lines("delay", "received")
        assert sorted(line["body"] for line in received) == ["after 2 s", "after 3 s"]
        for line in received:
            late_ms = line["at_ms"] - sent[line["body"]] - 1000 * int(line["body"].split()[1])
            assert 0 <= late_ms <= LATE_MS_MAX, f"{line['body']}: {late_ms} ms late"

    def test_a_suspended_queue_keeps_its_order(self, ons: Printed) -> None:
        bodies = ons.bodies("order", "received")
        for key in "AB":
            assert [body for body in bodies if body[0] == key] == [f"{key}:{number}" for number in range(5)]
        assert ons.bodies("order", "suspended") == ["A:2"]

    def test_only_committed_transactions_are_delivered(self, ons: Printed) -> None:
        assert ons.bodies("transaction", "rolled back") == ["rollback"]
        assert sorted(ons.bodies("transaction", "checked")) == ["unknown, commit", "unknown, rollback"]
        assert sorted(ons.bodies("transaction", "received")) == ["commit", "unknown, commit"]


@pytest.mark.node
class TestAliOns:
    """npm's ali-ons 3, which has levels, set times and retries, and neither order nor transactions."""

    def test_delayed_messages_come_at_their_times(self, ali: Printed) -> None:
        assert {line["status"] for line in ali.lines("ali-ons", "sent")} == {"SEND_OK"}
        due_ms = {line["body"]: line["due_ms"] for line in ali.lines("ali-ons", "sent")}
        for body in ("after a level", "at a time"):
            (received,) = [line for line in ali.lines("ali-ons", "received") if line["body"] == body]
            late_ms = received["at_ms"] - due_ms[body]
            assert 0 <= late_ms <= LATE_MS_MAX, f"{body}: {late_ms} ms late"

    def test_a_message_that_fails_once_comes_once_more(self, ali: Printed) -> None:
        """Without a level, the broker takes the third one: 10 s."""
        first, second = [line for line in ali.lines("ali-ons", "received") if line["body"] == "again"]
        assert (first["times"], second["times"]) == (0, 1)
        assert 10_000 <= second["at_ms"] - first["at_ms"] <= 10_000 + LATE_MS_MAX
