"""A feature is added in one line: it answers its codes, has its timers, hears of topics, and appends durably.

Another one makes the broker wait for replicas.
"""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from gantry.model.propertyname import PropertyName
from gantry.model.record import iter_records
from gantry.remoting.aio import Handler
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.assembly import Broker
from services.broker.delay import feature as delay_levels
from services.broker.features import FEATURES, Feature, build_handlers
from services.broker.newmessage import NewMessage
from services.broker.processors.table import replying_to_refusals
from services.broker.processors.unsupported import UNSUPPORTED
from services.broker.refusal import RefusalError
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit

BEATS_TOPIC = "T"


class Heartbeats:
    """A made-up feature: every second a message, which request 2006 also appends at once."""

    def __init__(self, broker: Broker) -> None:
        self.topics: list[str] = []
        self._broker = broker
        self._tasks: set[asyncio.Task[object]] = set()
        broker.on_topic_changed.append(self.topics.append)
        broker.timers.append(("heartbeats", 1000, self._beat))

    def handlers(self) -> Mapping[int, Handler]:
        return replying_to_refusals({RequestCode.GET_BROKER_HA_STATUS: self.append_now})

    async def append_now(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if request.body is None:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "no body")
        await self._append(request.body_bytes)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _beat(self) -> None:
        task = asyncio.ensure_future(self._append(b"beat"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, body: bytes) -> None:
        store = self._broker.store
        await self._broker.core.waiters.append(
            lambda: store.put(BEATS_TOPIC, 0, body, b"", born_at_ms=0, born_host=bytes(8))
        )


class Replication:
    """A made-up feature: the replicas have the log up to an offset that the test moves by hand."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._offset = 0
        broker.core.wait_for_replicas(lambda: self._offset)

    def handlers(self) -> Mapping[int, Handler]:
        return {}

    def acknowledge(self, offset: int) -> None:
        self._offset = offset
        self._broker.core.waiters.watermark_moved()


def with_replication(made: list[Replication]) -> Sequence[Feature]:
    def build(broker: Broker) -> Replication:
        made.append(Replication(broker))
        return made[-1]

    return (*FEATURES, build)


async def test_a_feature_is_added_in_one_line() -> None:
    made: list[Heartbeats] = []

    def build(broker: Broker) -> Heartbeats:
        made.append(Heartbeats(broker))
        return made[-1]

    features = (*FEATURES, build)
    async with BrokerUnit(features=features) as unit:
        await unit.make_topic(BEATS_TOPIC)
        assert made[0].topics == [BEATS_TOPIC]
        refused = await unit.ask(RequestCode.GET_BROKER_HA_STATUS)
        assert (refused.code, refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, "no body")
        assert (await unit.ask(RequestCode.GET_BROKER_HA_STATUS, body=b"now")).code == ResponseCode.SUCCESS
        await asyncio.sleep(2.5)
        answer = await unit.pull(BEATS_TOPIC, max_msg_nums=10)
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"now", b"beat", b"beat"]


async def test_a_send_hook_stores_a_special_message_in_another_place() -> None:
    seen: list[NewMessage] = []

    def divert(message: NewMessage) -> None:
        seen.append(message)
        message.properties[PropertyName.REAL_TOPIC] = message.topic
        message.topic = BEATS_TOPIC

    def build(broker: Broker) -> Heartbeats:
        broker.special_properties.add(PropertyName.DELAY)
        broker.send_hooks.append(divert)
        return Heartbeats(broker)

    others = [feature for feature in FEATURES if feature is not delay_levels.build]
    async with BrokerUnit(features=(*others, build)) as unit:
        await unit.make_topic(BEATS_TOPIC)
        await unit.make_topic("Other")
        for delay in ("3", "0"):
            reply = await unit.send("Other", b"body", properties={PropertyName.DELAY: delay})
            assert reply.code == ResponseCode.SUCCESS
        answer = await unit.pull(BEATS_TOPIC)
        (stored,) = iter_records(answer.body_bytes)
        assert (stored.body, stored.properties[PropertyName.REAL_TOPIC]) == (b"body", "Other")
        assert seen[0].properties[PropertyName.UNIQ_KEY] == stored.properties[PropertyName.UNIQ_KEY]
        (plain,) = iter_records((await unit.pull("Other")).body_bytes)
        assert plain.properties[PropertyName.DELAY] == "0"


async def test_without_the_feature_its_code_is_unsupported() -> None:
    async with BrokerUnit() as unit:
        answer = await unit.ask(RequestCode.GET_BROKER_HA_STATUS, body=b"now")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "replication to slaves comes in a later release" in str(answer.remark)
        assert set(unit.broker.handlers) >= set(UNSUPPORTED)


async def test_an_internal_append_waits_for_the_watermark_and_is_readable_when_it_returns() -> None:
    made: list[Heartbeats] = []

    def build(broker: Broker) -> Heartbeats:
        made.append(Heartbeats(broker))
        return made[-1]

    async with BrokerUnit(features=(*FEATURES, build), flush_disk_type=FlushDiskType.SYNC_FLUSH) as unit:
        await unit.make_topic(BEATS_TOPIC)
        unit.flush_is_stuck = True
        asked = asyncio.ensure_future(unit.ask(RequestCode.GET_BROKER_HA_STATUS, body=b"now"))
        await asyncio.sleep(0.5)
        assert not asked.done()
        unit.flush_is_stuck = False
        unit.broker.core.waiters.flushed_from_thread(unit.store.confirm_offset)
        assert (await asked).code == ResponseCode.SUCCESS
        assert [message.body for message in iter_records((await unit.pull(BEATS_TOPIC)).body_bytes)] == [b"now"]


@pytest.mark.parametrize("mode", FlushDiskType)
async def test_a_second_watermark_holds_back_replies_and_messages(mode: FlushDiskType) -> None:
    made: list[Replication] = []
    async with BrokerUnit(features=with_replication(made), flush_disk_type=mode) as unit:
        await unit.make_topic()
        sends, ends = [], []
        for body in (b"a", b"b"):
            sends.append(asyncio.ensure_future(unit.send(body=body)))
            await asyncio.sleep(0.5)
            ends.append(unit.store.state().max_physical_offset)
        assert not any(send.done() for send in sends)
        assert (await unit.pull()).code == ResponseCode.PULL_NOT_FOUND
        made[0].acknowledge(ends[0])
        assert (await sends[0]).code == ResponseCode.SUCCESS
        await asyncio.sleep(0.5)
        assert not sends[1].done()
        assert [message.body for message in iter_records((await unit.pull()).body_bytes)] == [b"a"]
        made[0].acknowledge(ends[1])
        assert (await sends[1]).code == ResponseCode.SUCCESS
        assert [message.body for message in iter_records((await unit.pull()).body_bytes)] == [b"a", b"b"]


async def test_replicas_that_lag_too_long_are_named_in_the_reply() -> None:
    made: list[Replication] = []
    async with BrokerUnit(features=with_replication(made)) as unit:
        await unit.make_topic()
        assert (await unit.send()).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_two_features_may_not_answer_the_same_code() -> None:
    async with BrokerUnit() as unit:
        with pytest.raises(AssertionError, match=r"two features answer request 10$"):
            build_handlers(unit.broker, (*FEATURES, FEATURES[0]))
