"""Sending, through the whole broker over memory and virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gantry.model.batch import encode_batch
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.record import iter_records
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand, SerializeType
from gantry.remoting.headers import SendMessageHeader
from gantry.runtime.rng import Rng
from tests.support.brokerunit import BrokerUnit, send_header
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock

DEFAULTS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


async def stored(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    answer = await unit.pull(topic, queue_id=queue_id, max_msg_nums=100)
    return list(iter_records(answer.body_bytes))


class TestSend:
    async def test_the_answer_has_queue_and_offset_of_the_message(self, unit: BrokerUnit) -> None:
        answer = await unit.send(queue_id=2, properties={"UNIQ_KEY": "K1", "TAGS": "A"}, flag=7)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext_fields == {
            "msgId": "0A00000500002A9F0000000000000000",
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": "K1",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        (message,) = await stored(unit, queue_id=2)
        assert message.properties == {"UNIQ_KEY": "K1", "TAGS": "A", **DEFAULTS}
        assert (message.body, message.flag, message.born_at_ms) == (b"hello", 7, 1_700_000_000_000)
        assert str(message.born_host) == "127.0.0.1:50000"
        assert str(message.store_host) == "10.0.0.5:10911"
        assert message.stored_id == answer.ext_fields["msgId"]

    async def test_the_long_header_format_gives_the_same_result(self, unit: BrokerUnit) -> None:
        v2 = send_header(queue_id=1)
        header = SendMessageHeader(**{name: getattr(v2, name) for name in v2.__struct_fields__})
        answer = await unit.ask(RequestCode.SEND_MESSAGE, header, body=b"x")
        assert (answer.code, answer.ext_fields["queueId"]) == (0, "1")

    async def test_a_binary_request_is_answered_in_binary(self, unit: BrokerUnit) -> None:
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header(), body=b"x")
        request.serialize_type = SerializeType.ROCKETMQ
        answer = await unit.connection.client.request(request, 1000)
        assert (answer.serialize_type, answer.code) == (SerializeType.ROCKETMQ, 0)
        assert answer.ext_fields["msgId"] == "0A00000500002A9F0000000000000000"

    async def test_a_missing_unique_key_is_created(self, unit: BrokerUnit) -> None:
        made = []
        for properties in (None, "", "TAGS\x01A", "UNIQ_KEY\x01\x02TAGS\x01A\x02"):
            answer = await unit.send(properties=properties)
            made.append(answer.ext_fields["transactionId"])
        assert len(set(made)) == 4
        assert all(len(key) == 32 for key in made)
        messages = await stored(unit)
        assert [message.message_id for message in messages] == made
        assert [message.tag for message in messages] == [None, None, "A", "A"]

    async def test_properties_of_the_broker_override_those_of_the_client(self, unit: BrokerUnit) -> None:
        theirs = {"MSG_REGION": "x", "CLUSTER": "y", "a": "b", "UNIQ_KEY": "K"}
        await unit.send(properties=theirs)
        text = "MSG_REGION\x01x\x02a\x01c\x02__CRC32#\x010000000000\x02UNIQ_KEY\x01L\x02UNIQ_KEY\x01M\x02"
        await unit.send(properties=text)
        first, second = await stored(unit)
        assert first.properties == {"a": "b", "UNIQ_KEY": "K", **DEFAULTS}
        assert second.properties == {"a": "c", "UNIQ_KEY": "M", **DEFAULTS}

    async def test_a_negative_queue_id_means_any_writable_queue(self, unit: BrokerUnit) -> None:
        queues = {(await unit.send(queue_id=-1)).ext_fields["queueId"] for _ in range(40)}
        assert queues == {"0", "1", "2", "3"}

    async def test_a_one_way_send_is_stored_and_not_answered(self, unit: BrokerUnit) -> None:
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header(), body=b"quiet", one_way=True)
        unit.connection.client.send_one_way(request)
        await unit.send(body=b"loud")
        assert [message.body for message in await stored(unit)] == [b"quiet", b"loud"]

    async def test_an_unknown_topic_is_created_from_its_template_and_survives(self, unit: BrokerUnit) -> None:
        answers = await asyncio.gather(*(unit.send("New", body=b"%d" % number) for number in range(3)))
        assert [answer.code for answer in answers] == [0, 0, 0]
        config = unit.broker.tables.topics.find("New")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)
        assert len(await stored(unit, "New")) == 3
        async with BrokerUnit(files=unit.files.crash_clone(Rng(3))) as after:
            assert after.broker.tables.topics.find("New") == config
            assert [message.body for message in await stored(after, "New")] == [b"0", b"1", b"2"]


class TestRefusedSend:
    @pytest.mark.parametrize(
        ("topic", "changes", "code", "remark"),
        [
            ("no topic", {}, ResponseCode.INVALID_PARAMETER, "topic: 'no topic' may only hold"),
            ("x" * 128, {}, ResponseCode.INVALID_PARAMETER, "is 128 characters long"),
            ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION, "topic[SCHEDULE_TOPIC_XXXX] is forbidden"),
            ("New", {"default_topic": "Nobody"}, ResponseCode.TOPIC_NOT_EXIST, "topic[New] not exist"),
            (
                "T",
                {"queue_id": 4},
                ResponseCode.INVALID_PARAMETER,
                "queueId[4] is illegal, topic T has readQueueNums=4",
            ),
            ("T", {"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL, "sysFlag=4"),
            ("T", {"sys_flag": 0x80}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "inner batches"),
            ("%RETRY%nobody", {}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, nobody"),
            ("%RETRY%no_T", {}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, no_T"),
            ("%RETRY%no+T", {}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, no+T"),
        ],
    )
    async def test_sends_to_forbidden_topics_and_queues_are_refused(
        self, unit: BrokerUnit, topic: str, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        before = unit.store.max_physical_offset
        answer = await unit.send(topic, **changes)
        assert answer.code == code
        assert remark in str(answer.remark)
        assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert unit.store.max_physical_offset == before
        assert (await unit.send()).code == 0

    @pytest.mark.parametrize(
        ("properties", "code", "remark"),
        [
            ({"DELAY": "x"}, 13, "property DELAY=x: is not a number"),
            ({"a": "b", "TRAN_MSG": "true"}, 13, "property PGROUP is missing"),
            ({"TIMER_DELIVER_MS": "soon"}, 13, "TIMER_DELIVER_MS=soon: is not a whole number"),
            ({"TIMER_DELAY_SEC": "9" * 19}, 13, "TIMER_DELAY_SEC=999"),
            ({"__STARTDELIVERTIME": "1.5"}, 13, "__STARTDELIVERTIME=1.5"),
            ({"INNER_NUM": "2"}, 3, "INNER_NUM=2"),
            ("a\x01\ud800\x02", 13, "can't be written as UTF-8"),
            ({"a": "b" * 33_000}, 13, "properties have 33"),
        ],
    )
    async def test_forbidden_properties_are_refused(
        self, unit: BrokerUnit, properties: Any, code: int, remark: str
    ) -> None:
        if isinstance(properties, str):
            request = RemotingCommand.request(
                RequestCode.SEND_MESSAGE_V2, send_header(properties=properties), body=b"x"
            )
            answer = unit.broker.handlers[310](unit.connection.server, request)
            assert isinstance(answer, RemotingCommand)
        else:
            answer = await unit.send(properties=properties)
        assert answer.code == code
        assert remark in str(answer.remark)
        assert unit.store.max_physical_offset == 0

    async def test_delay_properties_without_a_delay_pass(self, unit: BrokerUnit) -> None:
        for properties in ({"DELAY": "0"}, {"TRAN_MSG": "false"}, {"MY_DELAY": "3"}, {"DELAYED": "1"}):
            assert (await unit.send(properties=properties)).code == 0

    async def test_a_body_that_is_too_large_or_empty_is_refused(self, unit: BrokerUnit) -> None:
        none = await unit.ask(RequestCode.SEND_MESSAGE_V2, send_header())
        assert (none.code, none.remark) == (13, "message body is missing: the request has none")
        large = await unit.send(body=bytes(64 * 1024 + 1))
        assert (large.code, large.remark) == (13, "message body of 65537 bytes, maxMessageSize is 65536")
        assert (await unit.send(body=bytes(64 * 1024))).code == 0

    async def test_a_bad_header_names_the_field(self, unit: BrokerUnit) -> None:
        ext = send_header().to_ext()
        for field, value in [("e", "many"), ("f", str(2**31)), ("g", ""), ("b", None)]:
            changed = {key: text for key, text in {**ext, field: value}.items() if text is not None}
            answer = await unit.ask(RequestCode.SEND_MESSAGE_V2, ext=changed, body=b"x")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"header field {field} " in str(answer.remark)
        assert unit.store.max_physical_offset == 0

    async def test_a_broker_without_write_permission_takes_no_message_and_gives_those_it_has(
        self, unit: BrokerUnit
    ) -> None:
        assert (await unit.send("T", queue_id=0)).code == 0
        unit.change_settings(broker_permission=4)
        for topic in ("T", "New", "%RETRY%g"):
            answer = await unit.send(topic, queue_id=0)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[10.0.0.5:10911] sending message is forbidden"
        assert unit.broker.tables.topics.find("New") is None
        pulled = await unit.pull("T", queue_id=0)
        assert (pulled.code, len(list(iter_records(pulled.body_bytes)))) == (0, 1)
        unit.change_settings(broker_permission=6)
        assert (await unit.send("T", queue_id=0)).code == 0

    async def test_before_its_start_time_the_broker_accepts_no_send(self, unit: BrokerUnit) -> None:
        unit.change_settings(start_accept_send_request_time_stamp=unit.clock.now_ms() + 1000)
        answer = await unit.send()
        assert (answer.code, str(answer.remark)[:26]) == (1, "broker unable to service, ")
        await asyncio.sleep(1)
        assert (await unit.send()).code == 0

    async def test_a_topic_that_cannot_be_saved_takes_no_message(self) -> None:
        faults = FaultFileSystem(MemFileSystem(VirtualClock()))
        async with BrokerUnit(files=faults) as unit:
            await asyncio.sleep(0.1)
            faults.rules.append(FaultRule("write", "*topics.json*"))
            answer = await unit.send("New")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "topic New was not made" in str(answer.remark)
            assert (await unit.send("New")).code == ResponseCode.SERVICE_NOT_AVAILABLE  # Known, but not saved.
            assert unit.store.max_physical_offset == 0
            faults.rules.clear()
            await asyncio.sleep(2)
            assert (await unit.send("New")).code == 0

    async def test_sends_that_wait_for_their_topics_are_bounded(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("services.broker.processors.send.CREATING_BYTES_MAX", 10)
        first, second = await asyncio.gather(unit.send("New1", b"123456"), unit.send("New2", b"123456"))
        assert (first.code, second.code) == (0, ResponseCode.SYSTEM_BUSY)
        assert "6 bytes wait for their topics to be saved, the limit is 10" in str(second.remark)
        assert (await unit.send("New2", b"123456")).code == 0


class TestBatch:
    async def batch(self, unit: BrokerUnit, items: Any, **changes: Any) -> RemotingCommand:
        body = items if isinstance(items, bytes) else encode_batch(items)
        return await unit.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(batch=True, **changes), body=body)

    async def test_each_message_keeps_its_own_key(self, unit: BrokerUnit) -> None:
        items = [(number, b"m%d" % number, encode_properties({"UNIQ_KEY": f"K{number}"})) for number in range(3)]
        items.append((9, b"", b"TAGS\x01A"))
        answer = await self.batch(unit, items, properties={"UNIQ_KEY": "BATCH", "shared": "yes"})
        assert answer.code == 0
        assert answer.ext_fields["queueOffset"] == "0"
        assert answer.ext_fields["transactionId"] == "BATCH"
        messages = await stored(unit)
        assert answer.ext_fields["msgId"].split(",") == [message.stored_id for message in messages]
        assert [message.body for message in messages] == [b"m0", b"m1", b"m2", b""]
        assert [message.flag for message in messages] == [0, 1, 2, 9]
        assert [message.message_id for message in messages[:3]] == ["K0", "K1", "K2"]
        assert len(messages[3].message_id) == 32
        assert messages[3].properties == {
            "TAGS": "A", "UNIQ_KEY": messages[3].message_id, "shared": "yes", **DEFAULTS,
        }  # fmt: skip

    async def test_a_batch_is_stored_as_a_whole_or_not_at_all(self, unit: BrokerUnit) -> None:
        refused = [
            (
                [(0, b"a", b""), (0, b"b", b"DELAY\x013\x02")],
                {},
                13,
                "DELAY=3: a message of a batch or a reply may not have it",
            ),
            (
                [(0, b"a", b"")],
                {"properties": {"DELAY": "3"}},
                13,
                "DELAY=3: a message of a batch or a reply may not have it",
            ),
            ([(0, b"a", b"")], {"properties": {"TRAN_MSG": "true"}}, 13, "TRAN_MSG"),
            (b"\0\0\0\x05abc", {}, 13, "batch item 0"),
            (encode_batch([(0, b"a", b"")])[:-1], {}, 13, "batch item 0"),
            (b"", {}, 13, "body is missing"),
            ([(0, bytes(65_000), b""), (0, bytes(1000), b"")], {}, 13, "maxMessageSize is 65536"),
            ([(0, b"a", b"")], {"topic": "%RETRY%TOOLS_CONSUMER"}, 13, "may not go to a retry topic"),
            ([(0, b"a", b"")], {"sys_flag": 8}, 13, "sysFlag=8"),
            ([(0, b"a", b"")], {"queue_id": 77}, 29, "queueId[77]"),
        ]
        for items, changes, code, remark in refused:
            answer = await self.batch(unit, items, **changes)
            assert (answer.code, remark in str(answer.remark)) == (code, True), answer
        assert unit.store.max_physical_offset == 0


class TestDurability:
    @pytest.mark.parametrize("coding", SerializeType)
    async def test_a_waiting_answer_keeps_nothing_of_its_request(self, coding: SerializeType) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            requests: list[RemotingCommand] = []
            handlers = cast("dict[int, Any]", unit.broker.handlers)
            send = handlers[RequestCode.SEND_MESSAGE_V2]

            def keep(channel: Channel, request: RemotingCommand) -> Any:
                requests.append(request)
                return send(channel, request)

            handlers[RequestCode.SEND_MESSAGE_V2] = keep
            unit.flush_is_stuck = True
            request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header("T"), body=b"x" * 60_000)
            request.serialize_type = coding
            answer = asyncio.ensure_future(unit.connection.client.request(request, 60_000))
            await asyncio.sleep(0.01)
            assert unit.broker.core.waiters.waiting_count == 1
            assert (requests[0].body, requests[0].header, requests[0].ext_fields) == (None, None, {})
            unit.flush_is_stuck = False
            unit.broker.core.waiters.flushed_from_thread(unit.store.flushed_offset)
            assert ((await answer).code, (await answer).ext_fields["queueOffset"]) == (0, "0")

    async def test_no_send_is_answered_before_its_flush(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            unit.flush_is_stuck = True
            waiting = asyncio.ensure_future(unit.send())
            await asyncio.sleep(1)
            assert not waiting.done()
            assert unit.broker.core.waiters.waiting_count == 1
            unit.broker.core.waiters.flushed_from_thread(unit.store.max_physical_offset)
            assert (await waiting).code == 0
            assert unit.broker.core.waiters.latency.max_ms >= 1000

    async def test_sends_that_waited_for_a_slow_flush_are_dispatched_and_answered_in_pieces(self) -> None:
        """A disk that hung for a second under load once blocked the loop for another quarter of a second."""
        async with BrokerUnit(os_page_cache_busy_time_out_mills=100_000) as unit:
            await unit.make_topic("T")
            unit.flush_is_stuck = True
            waiters, store = unit.broker.core.waiters, unit.store
            sends = [asyncio.ensure_future(unit.send(queue_id=number % 4)) for number in range(1_500)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert waiters.waiting_count == len(sends)
            record_bytes = store.max_physical_offset // len(sends)
            assert store.dispatched_offset == 0
            unit.flush_is_stuck = False
            waiters.flushed_from_thread(store.flushed_offset)
            turns = 0
            while not all(send.done() for send in sends):
                before = store.dispatched_offset
                await asyncio.sleep(0)
                assert store.dispatched_offset - before <= 512 * record_bytes
                assert sum(send.done() for send in sends) * record_bytes <= store.dispatched_offset
                turns += 1
            assert turns >= 3
            assert {(await send).code for send in sends} == {0}
            assert store.dispatched_offset == store.max_physical_offset

    async def test_an_append_of_the_broker_itself_is_durable_and_readable(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            store = unit.store
            result = await unit.broker.core.waiters.append(
                lambda: store.put("T", 1, b"inner", b"", born_at_ms=0, born_host=bytes(8))
            )
            assert (result.queue_offset, store.dispatched_offset) == (0, result.next_offset)
            (message,) = await stored(unit, queue_id=1)
            assert message.body == b"inner"
            async with BrokerUnit(files=unit.files.crash_clone(Rng(3))) as after:
                assert [message.body for message in await stored(after, queue_id=1)] == [b"inner"]

    async def test_a_flush_timeout_is_answered_10_with_the_queue_offset(self) -> None:
        async with BrokerUnit(os_page_cache_busy_time_out_mills=100_000) as unit:
            await unit.make_topic("T")
            unit.flush_is_stuck = True
            answer = await unit.send()
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert answer.ext_fields["queueOffset"] == "0"
            assert unit.broker.core.waiters.timeouts == 1

    async def test_after_a_failed_flush_waiting_sends_end_and_new_ones_are_refused(self) -> None:
        faults = FaultFileSystem(MemFileSystem(VirtualClock()))
        async with BrokerUnit(files=faults) as unit:
            await unit.make_topic("T")
            assert (await unit.send()).code == 0
            faults.rules.append(FaultRule("sync", "*commitlog*"))
            started_ms = unit.clock.monotonic_ms()
            assert (await unit.send()).code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert unit.clock.monotonic_ms() - started_ms < 1000
            answer = await unit.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "can't be flushed" in str(answer.remark)
            faults.rules.clear()

    async def test_a_send_with_wait_false_is_answered_at_once(self) -> None:
        async with BrokerUnit() as unit:
            await unit.make_topic("T")
            unit.flush_is_stuck = True
            assert (await unit.send(properties={"WAIT": "false"})).code == 0

    @pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
    async def test_a_failed_write_is_answered_as_unknown(self, flush: str) -> None:
        async with BrokerUnit(flush_disk_type=flush) as unit:
            await unit.make_topic("T")
        faults = FaultFileSystem(unit.files)
        async with BrokerUnit(files=faults, flush_disk_type=flush) as unit:
            await unit.send(body=b"before")
            faults.rules.append(FaultRule("pwrite", "*commitlog*"))
            answers = await asyncio.gather(
                unit.send(body=b"lost"), unit.send(properties="WAIT\x01false\x02"), unit.send(queue_id=1)
            )
            for answer in answers:
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert str(answer.remark).endswith("whether it is stored is unknown")
            answer = await unit.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "the CommitLog can't be written" in str(answer.remark)
            assert [message.body for message in await stored(unit)] == [b"before"]

    async def test_no_send_is_answered_before_its_write(self) -> None:
        async with BrokerUnit(flush_disk_type="ASYNC_FLUSH") as unit:
            await unit.make_topic("T")
            write_out = unit.store.write_out
            unit.store.write_out = lambda: 0  # type: ignore[method-assign]
            sending = asyncio.ensure_future(unit.send())
            await asyncio.sleep(0.01)
            assert (await sending).code == ResponseCode.SYSTEM_ERROR
            unit.store.write_out = write_out  # type: ignore[method-assign]
            assert (await unit.send()).code == ResponseCode.SUCCESS

    async def test_with_async_flush_a_send_is_answered_and_readable_at_once(self) -> None:
        async with BrokerUnit(flush_disk_type="ASYNC_FLUSH") as unit:
            await unit.make_topic("T")
            assert (await unit.send()).code == 0
            assert len(await stored(unit)) == 1

    async def test_a_send_refused_because_of_a_slow_disk_is_answered_at_once_as_not_stored(self) -> None:
        async with BrokerUnit(send_thread_pool_queue_capacity=2) as unit:
            await unit.make_topic("T")
            unit.flush_is_stuck = True
            waiting = [asyncio.ensure_future(unit.send()) for _ in range(2)]
            await asyncio.sleep(0.01)
            end = unit.store.max_physical_offset
            answer = await unit.send()
            assert (answer.code, str(answer.remark)[:10]) == (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")
            await asyncio.sleep(2)
            unit.change_settings(send_thread_pool_queue_capacity=10)
            answer = await unit.send()
            assert (answer.code, str(answer.remark)[:15]) == (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]")
            assert unit.store.max_physical_offset == end
            assert unit.broker.core.overload.refused_sends == 2
            unit.broker.core.waiters.flushed_from_thread(end)
            assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0]
