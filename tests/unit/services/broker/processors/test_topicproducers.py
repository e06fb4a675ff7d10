"""Request 900023: the producers of a topic."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.model.batch import encode_batch
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.bodies.producers import PRODUCERS_MAX, TopicProducer, TopicProducers
from gantry.remoting.codes import LanguageCode, RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.processors import connections
from services.broker.registry import senders
from tests.support.brokerunit import BrokerUnit, send_header
from tests.support.connectionpair import ConnectionPair


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


async def ask(unit: BrokerUnit, topic: str = "T") -> TopicProducers:
    answer = await unit.ask(RequestCode.GANTRY_TOPIC_PRODUCERS, ext={"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return TopicProducers.decode(answer.body_bytes)


async def groups(unit: BrokerUnit, topic: str = "T") -> list[str]:
    return [row.group for row in (await ask(unit, topic)).producers]


async def send_as(
    unit: BrokerUnit, group: str, connection: ConnectionPair | None = None, properties: dict[str, str] | None = None
) -> None:
    header = send_header("T", producer_group=group, properties=properties)
    answer = await unit.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"x", connection=connection)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


class TestFacts:
    async def test_a_producer_has_the_facts_of_its_connection_and_of_its_last_message(self, unit: BrokerUnit) -> None:
        assert (await ask(unit)).producers == []
        await send_as(unit, "pg")
        await asyncio.sleep(5)
        await send_as(unit, "pg")
        stored_at_ms = unit.store.stored_at("T", 0, 1)
        [row] = (await ask(unit)).producers
        assert row == TopicProducer(
            address="127.0.0.1:50000",
            client_id=None,
            group="pg",
            language="PYTHON",
            sent_at=stored_at_ms or 0,
            version=479,
        )
        await unit.ask(RequestCode.HEART_BEAT, body=HeartbeatData("1@2", ("pg",), ()).encode())
        [row] = (await ask(unit)).producers
        assert row.client_id == "1@2"

    async def test_language_and_version_are_those_of_the_sender(self, unit: BrokerUnit) -> None:
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header("T", producer_group="pg"), body=b"x")
        request.language_name, request.version = LanguageCode.GO.name, 317
        await unit.connection.client.request(request, 1_000)
        [row] = (await ask(unit)).producers
        assert (row.language, row.version) == ("GO", 317)

    async def test_an_id_is_named_only_if_it_is_certain(self, unit: BrokerUnit) -> None:
        await send_as(unit, "pg")
        for client_id, group, named in (("one", "other", "one"), ("two", "pg", "two"), ("three", "pg", None)):
            await unit.ask(RequestCode.HEART_BEAT, body=HeartbeatData(client_id, (group,), ()).encode())
            [row] = (await ask(unit)).producers
            assert row.client_id == named

    async def test_the_producer_that_sent_last_comes_first(self, unit: BrokerUnit) -> None:
        one, two = unit.connect(), unit.connect()
        for group, connection in (("a", one), ("b", two), ("c", one), ("a", one)):
            await send_as(unit, group, connection)
            await asyncio.sleep(1)
        assert await groups(unit) == ["a", "c", "b"]

    @pytest.mark.parametrize(
        "properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "9"}, {"TRAN_MSG": "true", "PGROUP": "pg"}], ids=str
    )
    async def test_a_message_that_waits_counts_for_its_own_topic(
        self, unit: BrokerUnit, properties: dict[str, str]
    ) -> None:
        await send_as(unit, "pg", properties=properties)
        assert await groups(unit) == ["pg"]

    async def test_a_batch_counts(self, unit: BrokerUnit) -> None:
        header = send_header("T", producer_group="pg", batch=True)
        body = encode_batch([(0, b"one", b""), (0, b"two", b"")])
        answer = await unit.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        [row] = (await ask(unit)).producers
        assert (row.group, row.sent_at) == ("pg", unit.store.stored_at("T", 0, 1))

    async def test_a_refused_message_does_not_count(self, unit: BrokerUnit) -> None:
        header = send_header("T", producer_group="pg", queue_id=99)
        assert (await unit.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"x")).code != ResponseCode.SUCCESS
        assert await groups(unit) == []

    async def test_an_unknown_topic_is_refused(self, unit: BrokerUnit) -> None:
        answer = await unit.ask(RequestCode.GANTRY_TOPIC_PRODUCERS, ext={"topic": "Gone"})
        assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[Gone] not exist")


class TestEnd:
    async def test_a_closed_connection_leaves_the_list(self, unit: BrokerUnit) -> None:
        gone = unit.connect()
        await send_as(unit, "a", gone)
        await send_as(unit, "b", gone)
        await send_as(unit, "c")
        gone.client.abort("the producer ends")
        await asyncio.sleep(0.1)
        assert await groups(unit) == ["c"]
        assert unit.broker.tables.senders.count == 1

    async def test_a_group_that_unregisters_leaves_the_list_and_the_others_of_its_connection_stay(
        self, unit: BrokerUnit
    ) -> None:
        for client_id in ("one", "two"):
            await unit.ask(RequestCode.HEART_BEAT, body=HeartbeatData(client_id, ("a",), ()).encode())
        for group in ("a", "b", "c"):
            await send_as(unit, group)
        for client_id, group, left in (
            ("one", "a", ["a", "b", "c"]),
            ("two", "a", ["b", "c"]),
            ("two", "c", ["b"]),
            ("two", "c", ["b"]),
            ("two", "b", []),
        ):
            await unit.ask(RequestCode.UNREGISTER_CLIENT, ext={"clientID": client_id, "producerGroup": group})
            assert sorted(await groups(unit)) == left
            assert unit.broker.tables.senders.count == len(left)
        await send_as(unit, "a")
        assert await groups(unit) == ["a"]

    async def test_a_changed_topic_keeps_its_producers_and_a_deleted_one_does_not(self, unit: BrokerUnit) -> None:
        await send_as(unit, "pg")
        await unit.make_topic("T", queues=8)
        await send_as(unit, "pg2")
        assert sorted(await groups(unit)) == ["pg", "pg2"]
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        assert unit.broker.tables.senders.count == 0
        await asyncio.sleep(1)
        await unit.make_topic("T")
        assert await groups(unit) == []
        await send_as(unit, "pg3")
        assert await groups(unit) == ["pg3"]


class TestLimits:
    async def test_the_answer_says_that_there_are_more_producers(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert PRODUCERS_MAX == 1_000
        monkeypatch.setattr(connections, "PRODUCERS_MAX", 2)
        for group in ("a", "b"):
            await send_as(unit, group)
            await asyncio.sleep(1)
        assert not (await ask(unit)).is_truncated
        await send_as(unit, "c")
        found = await ask(unit)
        assert ([row.group for row in found.producers], found.is_truncated) == (["c", "b"], True)

    async def test_a_full_table_notes_no_new_producer_and_the_answer_says_so(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(senders, "SENDERS_MAX", 2)
        for group in ("a", "b", "c"):
            await send_as(unit, group)
        found = await ask(unit)
        assert (sorted(row.group for row in found.producers), found.is_truncated) == (["a", "b"], True)
        unit.connection.client.abort("room again")
        unit.connection = unit.connect()
        await send_as(unit, "c")
        assert await groups(unit) == ["c"]

    async def test_groups_of_a_connection_are_limited(self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(senders, "GROUPS_OF_CONNECTION_MAX", 2)
        for group in ("a", "b", "c", "g" * 256):
            await send_as(unit, group)
        assert sorted(await groups(unit)) == ["a", "b"]
        await send_as(unit, "d" * 255, unit.connect())
        assert sorted(await groups(unit)) == ["a", "b", "d" * 255]
