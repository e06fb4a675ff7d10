import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.message import decode_properties
from gantry.model.record import iter_records
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import PushReplyHeader, SendMessageHeader
from services.broker.processors import reply as replies
from tests.support.brokerunit import BrokerUnit, send_header
from tests.support.connectionpair import ConnectionPair

TOPIC = "C_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "asker@1", "CORRELATION_ID": "c-1", "TTL": "3000"}


class Asker:
    """A client that waits for replies. `code` is its answer to a push; None means that it never answers."""

    def __init__(self, unit: BrokerUnit, client_id: str = "asker@1", code: int | None = 0) -> None:
        self.unit = unit
        self.client_id = client_id
        self.code = code
        self.pushed: list[tuple[PushReplyHeader, bytes]] = []
        self.pair: ConnectionPair = unit.connect({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take})

    async def beat(self, *groups: str) -> None:
        body = HeartbeatData(self.client_id, groups or ("pg",)).encode()
        assert (await self.unit.ask(RequestCode.HEART_BEAT, body=body, connection=self.pair)).code == 0

    async def _take(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.pushed.append((PushReplyHeader.from_ext(request.ext_fields), request.body_bytes))
        if self.code is None:
            await asyncio.sleep(3600)
        return RemotingCommand.response_to(request, self.code or 0)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        yield unit


async def answer(unit: BrokerUnit, body: bytes = b"42", *, properties: Any = PROPERTIES, **changes: Any) -> Any:
    header = send_header(changes.pop("topic", TOPIC), properties=properties, **changes)
    return await unit.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=body)


async def stored(unit: BrokerUnit) -> list[Any]:
    return list(iter_records((await unit.pull(TOPIC, max_msg_nums=10)).body_bytes))


async def test_a_reply_is_stored_and_pushed_to_the_client_that_asked(unit: BrokerUnit) -> None:
    asker = Asker(unit)
    await asker.beat()
    reply = await answer(unit, b"42", flag=7)
    assert (reply.code, reply.remark) == (0, None)
    [record] = await stored(unit)
    assert reply.ext_fields == {
        "msgId": f"0A00000500002A9F{record.physical_offset:016X}",
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    expected = PROPERTIES | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    kept = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
    assert (kept, record.body, record.flag) == (expected, b"42", 7), "no CLUSTER, and no made UNIQ_KEY"
    [(push, body)] = asker.pushed
    now = str(push.store_timestamp)
    assert decode_properties((push.properties or "").encode()) == expected | {"PUSH_REPLY_TIME": now}
    assert (body, push.topic, push.producer_group, push.flag, push.queue_id) == (b"42", TOPIC, "pg", 7, 0)
    assert (push.born_host, push.store_host) == ("127.0.0.1:50000", "10.0.0.5:10911")
    assert (push.reconsume_times, push.unit_mode, push.default_topic) == (0, False, "TBW102")


async def test_request_324_has_the_long_names(unit: BrokerUnit) -> None:
    asker = Asker(unit)
    await asker.beat()
    short = send_header(TOPIC, properties=PROPERTIES)
    header = SendMessageHeader(**{name: getattr(short, name) for name in SendMessageHeader.__struct_fields__})
    reply = await unit.ask(RequestCode.SEND_REPLY_MESSAGE, header, body=b"42")
    assert (reply.code, len(asker.pushed)) == (0, 1)


async def test_a_reply_to_an_unknown_client_is_stored_and_the_remark_names_the_client(unit: BrokerUnit) -> None:
    reply = await answer(unit)
    assert (reply.code, reply.remark) == (1, "push reply message fail, channel of <asker@1> not found.")
    assert set(reply.ext_fields) == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert len(await stored(unit)) == 1


async def test_a_reply_without_the_client_that_asked_is_stored(unit: BrokerUnit) -> None:
    reply = await answer(unit, properties={"MSG_TYPE": "reply"})
    assert (reply.code, reply.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert len(await stored(unit)) == 1


@pytest.mark.parametrize("code", [1, None])
async def test_a_client_that_does_not_take_the_reply_is_named(unit: BrokerUnit, code: int | None) -> None:
    asker = Asker(unit, code=code)
    await asker.beat()
    reply = await answer(unit)
    assert (reply.code, reply.remark) == (1, "push reply message to asker@1fail.")
    assert len(asker.pushed) == 1


async def test_the_push_goes_to_the_latest_heartbeat_and_follows_the_client(unit: BrokerUnit) -> None:
    old, new = Asker(unit), Asker(unit)
    await old.beat("pg", "ph")
    await new.beat()
    await answer(unit)
    assert (len(old.pushed), len(new.pushed)) == (0, 1)
    await old.beat()
    await answer(unit)
    assert (len(old.pushed), len(new.pushed)) == (1, 1)
    old.pair.client.abort("gone")
    await asyncio.sleep(0.01)
    await answer(unit)
    assert (len(old.pushed), len(new.pushed)) == (1, 2)
    for group in ("pg", "none"):
        ext = {"clientID": "asker@1", "producerGroup": group}
        await unit.ask(RequestCode.UNREGISTER_CLIENT, ext=ext, connection=new.pair)
    assert (await answer(unit)).code == 1


async def test_a_consumer_does_not_get_replies(unit: BrokerUnit) -> None:
    asker = Asker(unit)
    body = HeartbeatData("asker@1").encode()
    await unit.ask(RequestCode.HEART_BEAT, body=body, connection=asker.pair)
    assert (await answer(unit)).code == 1


async def test_no_reply_is_pushed_before_it_is_durable(unit: BrokerUnit) -> None:
    asker = Asker(unit)
    await asker.beat()
    unit.flush_is_stuck = True
    waiting = asyncio.ensure_future(answer(unit))
    await asyncio.sleep(1)
    assert (asker.pushed, waiting.done()) == ([], False)
    await asyncio.sleep(6)
    assert ((await waiting).code, len(asker.pushed)) == (ResponseCode.FLUSH_DISK_TIMEOUT, 1)


async def test_replies_need_not_be_stored() -> None:
    async with BrokerUnit(store_reply_message_enable=False) as unit:
        asker = Asker(unit)
        await asker.beat()
        reply = await answer(unit)
        assert (reply.code, reply.ext_fields["msgId"], reply.ext_fields["queueOffset"]) == (0, "0", "0")
        assert (len(asker.pushed), await stored(unit)) == (1, [])
        refused = await answer(unit, properties="A\x01b\x01c\x02REPLY_TO_CLIENT\x01asker@1\x02")
        assert (refused.code, len(asker.pushed)) == (ResponseCode.MESSAGE_ILLEGAL, 1)


async def test_a_one_way_reply_is_pushed(unit: BrokerUnit) -> None:
    asker = Asker(unit)
    await asker.beat()
    command = RemotingCommand.request(
        RequestCode.SEND_REPLY_MESSAGE_V2, send_header(TOPIC, properties=PROPERTIES), body=b"42", one_way=True
    )
    unit.connection.client.send_one_way(command)
    await asyncio.sleep(0.1)
    assert len(asker.pushed) == 1


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "Nowhere"}, 17, "topic[Nowhere] not exist, apply first please!"),
        ({"topic": "%RETRY%g"}, 13, "a reply may not go to a retry topic"),
        ({"topic": "a b"}, 29, "topic"),
        ({"queue_id": 1}, 29, "request queueId[1] is illegal"),
        ({"sys_flag": 4}, 13, "sysFlag=4: only a message with the property TRAN_MSG=true"),
        ({"body": bytes(64 * 1024 + 1)}, 13, "message body has 65537 bytes"),
        ({"properties": {"TRAN_MSG": "true"}}, None, "TRAN_MSG=true"),
    ],
)
async def test_a_bad_reply_is_refused_by_name_and_nothing_is_stored(
    unit: BrokerUnit, changes: dict[str, Any], code: int | None, remark: str
) -> None:
    reply = await answer(unit, **changes)
    assert reply.code == code or (code is None and reply.code != 0)
    assert remark in str(reply.remark)
    assert reply.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert await stored(unit) == []


async def test_a_reply_without_a_body_is_refused(unit: BrokerUnit) -> None:
    reply = await unit.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_header(TOPIC, properties=PROPERTIES))
    assert (reply.code, "message body is missing" in reply.remark) == (13, True)


async def test_replies_on_their_way_are_bounded(unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PUSHED_BYTES_MAX", 3)
    asker = Asker(unit, code=None)
    await asker.beat()
    waiting = asyncio.ensure_future(answer(unit))
    await asyncio.sleep(1)
    refused = await answer(unit)
    assert (refused.code, "1 replies of 2 bytes are on their way" in refused.remark) == (2, True)
    await waiting
    assert len(asker.pushed) == 1
    asker.code = 0
    assert (await answer(unit)).code == 0
