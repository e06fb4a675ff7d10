from collections.abc import AsyncIterator

import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        unit.broker.tables.groups.ensure("g", unit.settings, 1)
        yield unit


async def ask(unit: BrokerUnit, code: int, *, queue_id: int = 0, topic: str = "T", **ext: object) -> RemotingCommand:
    fields = {"topic": topic, "queueId": queue_id, "consumerGroup": "g", **ext}
    return await unit.ask(code, ext={name: str(value) for name, value in fields.items()})


async def query(unit: BrokerUnit, **ext: object) -> tuple[int, str | None]:
    answer = await ask(unit, RequestCode.QUERY_CONSUMER_OFFSET, **ext)
    return answer.code, answer.ext_fields.get("offset")


class TestGroupOffsets:
    async def test_committed_offsets_are_returned(self, unit: BrokerUnit) -> None:
        for _ in range(8):
            await unit.send()
        assert (await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=8)).code == 0
        assert await query(unit) == (0, "8")
        assert (await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=-1)).code == 0
        assert await query(unit) == (0, "8")

    async def test_a_new_group_begins_at_zero_only_on_a_young_queue(self, unit: BrokerUnit) -> None:
        assert await query(unit) == (ResponseCode.QUERY_NOT_FOUND, None)  # No message could be missed.
        await unit.send()
        assert await query(unit) == (0, "0")
        assert await query(unit, setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)
        assert await query(unit, setZeroIfNotFound="true") == (0, "0")

    async def test_an_old_queue_is_not_read_from_its_start(self) -> None:
        # The harness counts 40 % of a GiB of memory as recent; a smaller share makes a store of a few KiB old.
        async with BrokerUnit(access_message_in_memory_max_ratio=0) as unit:
            await unit.make_topic("T")
            await unit.send()
            await unit.send()
            assert await query(unit) == (ResponseCode.QUERY_NOT_FOUND, None)

    async def test_unknown_names_are_refused(self, unit: BrokerUnit) -> None:
        answer = await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, topic="Gone", commitOffset=3)
        assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "Topic Gone not exist!")
        answer = await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="nobody", commitOffset=3)
        assert (answer.code, answer.remark) == (26, "Group nobody not exist!")

    @pytest.mark.parametrize(
        ("queue_id", "offset", "remark"),
        [
            (4, 0, "queueId=4: topic T has 4 queues"),
            (2**31 - 1, 0, "queueId=2147483647: topic T has 4 queues"),
            (1, 1, "commitOffset=1: queue 1 of topic T ends at 0; the offset was not stored"),
            (0, 2, "commitOffset=2: queue 0 of topic T ends at 1; the offset was not stored"),
        ],
    )
    async def test_a_commit_that_would_hide_messages_is_refused(
        self, unit: BrokerUnit, queue_id: int, offset: int, remark: str
    ) -> None:
        await unit.send()
        assert (await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1)).code == 0
        answer = await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, queue_id=queue_id, commitOffset=offset)
        assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
        assert unit.broker.tables.offsets.all() == {"T@g": {0: 1}}

    async def test_a_queue_removed_from_its_topic_counts_while_it_has_messages(self, unit: BrokerUnit) -> None:
        await unit.send(queue_id=3)
        await unit.make_topic("T", queues=2)
        assert (await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, queue_id=3, commitOffset=1)).code == 0
        assert (await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, queue_id=2, commitOffset=0)).code == 29

    async def test_a_full_table_is_reported(self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("services.broker.registry.offsets.OFFSETS_MAX", 0)
        answer = await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=0)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "group g on topic T: the table of committed offsets is full; the offset was not stored",
        )

    async def test_offsets_survive_a_stop(self, unit: BrokerUnit) -> None:
        for _ in range(7):
            await unit.send(queue_id=2)
        await ask(unit, RequestCode.UPDATE_CONSUMER_OFFSET, queue_id=2, commitOffset=7)
        unit.broker.save_offsets()
        unit.broker.persistence.write_all()
        await unit.broker.persistence.durable("consumerOffset.json")
        saved = unit.files.read("/data/store/config/consumerOffset.json")
        assert b'"offsetTable":{\n\t\t"T@g":{2:7\n\t\t}\n\t}' in saved


class TestQueueOffsets:
    async def test_min_max_and_times(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send()
        stored_at_ms = unit.store.stored_at("T", 0, 0)
        assert (await ask(unit, RequestCode.GET_MAX_OFFSET)).ext_fields == {"offset": "3"}
        assert (await ask(unit, RequestCode.GET_MIN_OFFSET)).ext_fields == {"offset": "0"}
        answer = await ask(unit, RequestCode.GET_EARLIEST_MSG_STORETIME)
        assert answer.ext_fields == {"timestamp": str(stored_at_ms)}

    async def test_a_missing_queue_is_empty(self, unit: BrokerUnit) -> None:
        for topic in ("T", "Nobody"):
            assert (await ask(unit, RequestCode.GET_MAX_OFFSET, topic=topic)).ext_fields == {"offset": "0"}
            assert (await ask(unit, RequestCode.GET_MIN_OFFSET, topic=topic)).ext_fields == {"offset": "0"}
            answer = await ask(unit, RequestCode.GET_EARLIEST_MSG_STORETIME, topic=topic)
            assert answer.ext_fields == {"timestamp": "-1"}

    async def test_offsets_by_time_have_two_boundaries(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send()
        first_ms = unit.store.stored_at("T", 0, 0)
        last_ms = unit.store.stored_at("T", 0, 2)
        assert first_ms is not None
        assert last_ms is not None
        for at_ms, boundary, offset in [
            (first_ms - 5, "LOWER", "0"),
            (last_ms + 5, "LOWER", "3"),
            (last_ms + 5, "upper", "2"),
            (last_ms + 5, "anything", "3"),
        ]:
            answer = await ask(unit, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=at_ms, boundaryType=boundary)
            assert answer.ext_fields == {"offset": offset}

    @pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
    async def test_bad_fields_are_named(self, unit: BrokerUnit, code: int) -> None:
        negative = await ask(unit, code, queue_id=-1, commitOffset=1, timestamp=1)
        assert (negative.code, negative.remark) == (29, "queueId=-1: is negative")
        wrong = await ask(unit, code, queueId="many", commitOffset=1, timestamp=1)
        assert (wrong.code, "header field queueId = 'many'" in str(wrong.remark)) == (1, True)
