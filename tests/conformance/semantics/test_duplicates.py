"""Promises of duplicate windows: a message is stored once within the window, and its second send gets the first answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.batch import encode_batch
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gantry.model.record import iter_records
from gantry.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.send import decode_positions
from gantry.remoting.headers.transaction import EndTransactionHeader
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from tests.support.brokerunit import BrokerUnit, send_header

ATTRIBUTE = "gantry.duplicate.window.ms"
WINDOW_MS = 60_000
KEY = "7F0000010001AAAABBBB000000010000"
SYNC: dict[str, Any] = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
SEEDS = range(20)
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


async def make_topic(unit: BrokerUnit, topic: str = "T", window_ms: int | None = WINDOW_MS) -> RemotingCommand:
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
        "attributes": f"-{ATTRIBUTE}" if window_ms is None else f"+{ATTRIBUTE}={window_ms}",
    }  # fmt: skip
    return await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(**SYNC) as unit:
        assert (await make_topic(unit)).code == ResponseCode.SUCCESS
        yield unit


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext_fields["msgId"], answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]


def is_replayed(answer: RemotingCommand) -> bool:
    return answer.ext_fields.get("gantryReplayed") == "true"


def stored(unit: BrokerUnit, topic: str = "T") -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for queue_id in range(18):
        found += iter_records(unit.store.get(topic, queue_id, 0, 1000, wide_messages=1000).body)
    return found


def batch(*keys: str) -> bytes:
    return encode_batch([(0, f"b{at}".encode(), encode_properties({"UNIQ_KEY": key})) for at, key in enumerate(keys)])


async def send_batch(unit: BrokerUnit, *keys: str, queue_id: int = 0) -> RemotingCommand:
    header = send_header(queue_id=queue_id, batch=True)
    return await unit.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=batch(*keys))


class TestOneMessage:
    @pytest.mark.parametrize("key", [KEY, KEY.lower(), "order-42", "ÄÖ" * 40, "x" * 3000])
    async def test_the_second_send_gets_the_first_answer_and_stores_nothing(self, unit: BrokerUnit, key: str) -> None:
        first = await unit.send(properties={"UNIQ_KEY": key}, queue_id=1)
        second = await unit.send(properties={"UNIQ_KEY": key}, queue_id=3, body=b"again")
        assert place(second) == place(first)
        assert (is_replayed(first), is_replayed(second)) == (False, True)
        assert [message.body for message in stored(unit)] == [b"hello"]

    async def test_other_keys_are_other_messages(self, unit: BrokerUnit) -> None:
        for key in (KEY, KEY.lower(), KEY[:-1] + "1", "order-42", "order-43"):
            assert not is_replayed(await unit.send(properties={"UNIQ_KEY": key}))
        assert len(stored(unit)) == 5

    async def test_messages_without_a_key_are_never_duplicates(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send()
        assert len(stored(unit)) == 3

    async def test_a_topic_without_a_window_stores_every_send(self, unit: BrokerUnit) -> None:
        await unit.make_topic("PLAIN")
        for _ in range(2):
            assert not is_replayed(await unit.send("PLAIN", properties={"UNIQ_KEY": KEY}))
        assert len(stored(unit, "PLAIN")) == 2

    async def test_each_topic_has_a_window_of_its_own(self, unit: BrokerUnit) -> None:
        await make_topic(unit, "U")
        await unit.send(properties={"UNIQ_KEY": KEY})
        assert not is_replayed(await unit.send("U", properties={"UNIQ_KEY": KEY}))

    async def test_a_message_is_new_again_when_the_window_is_over(self, unit: BrokerUnit) -> None:
        await unit.send(properties={"UNIQ_KEY": KEY})
        await asyncio.sleep(WINDOW_MS / 1000 - 1)
        assert is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))
        await asyncio.sleep(1)
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))

    async def test_a_replay_does_not_make_the_window_longer(self, unit: BrokerUnit) -> None:
        for _ in range(6):
            await unit.send(properties={"UNIQ_KEY": KEY})
            await asyncio.sleep(WINDOW_MS / 5000)
        assert len(stored(unit)) == 2

    async def test_one_way_sends_are_stored_once(self, unit: BrokerUnit) -> None:
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, send_header(properties={"UNIQ_KEY": KEY}), body=b"x", one_way=True
        )
        for _ in range(3):
            unit.connection.client.send_one_way(command)
        await asyncio.sleep(1)
        assert len(stored(unit)) == 1

    async def test_two_sends_at_once_are_stored_once(self, unit: BrokerUnit) -> None:
        answers = await asyncio.gather(*(unit.send(properties={"UNIQ_KEY": KEY}, queue_id=q % 4) for q in range(50)))
        assert len({place(answer) for answer in answers}) == 1
        assert len(stored(unit)) == 1


class TestDurability:
    async def test_a_replay_waits_until_the_first_message_is_durable(self, unit: BrokerUnit) -> None:
        unit.flush_is_stuck = True
        sends = [asyncio.ensure_future(unit.send(properties={"UNIQ_KEY": KEY})) for _ in range(2)]
        done, _ = await asyncio.wait(sends, timeout=1)
        assert not done
        answers = await asyncio.gather(*sends)
        assert {answer.code for answer in answers} == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert len({answer.ext_fields["msgId"] for answer in answers}) == 1

    async def test_a_refused_message_leaves_no_key(self, unit: BrokerUnit) -> None:
        unit.store._writer.refusal = "the disk is full"
        refused = await unit.send(properties={"UNIQ_KEY": KEY})
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        unit.store._writer.refusal = None
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))

    async def test_a_replay_needs_no_room_on_the_disk(self, unit: BrokerUnit) -> None:
        first = await unit.send(properties={"UNIQ_KEY": KEY})
        unit.store._writer.refusal = "the disk is full"
        assert place(await unit.send(properties={"UNIQ_KEY": KEY})) == place(first)


class TestBatches:
    async def test_only_the_new_messages_of_a_batch_are_stored(self, unit: BrokerUnit) -> None:
        first = await unit.send(properties={"UNIQ_KEY": "k1"}, queue_id=2)
        answer = await send_batch(unit, "k0", "k1", "k2", "k2")
        assert len(stored(unit)) == 3
        ids = answer.ext_fields["msgId"].split(",")
        assert ids[1] == place(first)[0]
        assert ids[2] == ids[3]
        positions = decode_positions(answer.ext_fields["gantryPositions"], 4)
        assert positions == [(0, 0, False), (2, 0, True), (0, 1, False), (0, 1, True)]
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("0", "0")

    async def test_a_batch_that_is_sent_again_is_not_stored_again(self, unit: BrokerUnit) -> None:
        first = await send_batch(unit, "a", "b", "c", queue_id=1)
        second = await send_batch(unit, "a", "b", "c", queue_id=3)
        assert place(second) == place(first)
        assert "gantryPositions" not in first.ext_fields
        assert second.ext_fields["gantryPositions"] == "1:0:3:r"
        assert len(stored(unit)) == 3

    async def test_a_message_of_a_batch_is_known_to_single_sends(self, unit: BrokerUnit) -> None:
        answer = await send_batch(unit, "a", "b")
        again = await unit.send(properties={"UNIQ_KEY": "b"})
        assert place(again) == (answer.ext_fields["msgId"].split(",")[1], "0", "1")


class TestWaitingMessages:
    async def test_a_message_with_a_level_is_stored_once_before_and_after_its_delivery(self, unit: BrokerUnit) -> None:
        first = await unit.send(properties={"UNIQ_KEY": KEY, "DELAY": "3"}, queue_id=2)
        for _ in range(2):
            again = await unit.send(properties={"UNIQ_KEY": KEY, "DELAY": "3"}, queue_id=1)
            assert (place(again), is_replayed(again)) == (place(first), True)
            await asyncio.sleep(12)
        assert (len(stored(unit, SCHEDULE_TOPIC)), len(stored(unit))) == (1, 1)

    async def test_a_timed_message_is_stored_once_and_keeps_its_handle(self, unit: BrokerUnit) -> None:
        first = await unit.send(properties={"UNIQ_KEY": KEY, "TIMER_DELAY_MS": "20000"}, queue_id=2)
        again = await unit.send(properties={"UNIQ_KEY": KEY, "TIMER_DELAY_MS": "25000"})
        assert place(again) == place(first)
        assert again.ext_fields["recallHandle"] == first.ext_fields["recallHandle"]
        await asyncio.sleep(30)
        assert (len(stored(unit, TIMER_TOPIC)), len(stored(unit))) == (1, 1)

    async def test_a_transaction_is_begun_once_and_committed_once(self, unit: BrokerUnit) -> None:
        properties = {"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "P"}
        first = await unit.send(properties=properties, sys_flag=TRANSACTION_PREPARED)
        again = await unit.send(properties=properties, sys_flag=TRANSACTION_PREPARED)
        assert place(again) == place(first)
        message_id, _, offset = place(again)
        header = EndTransactionHeader(
            producer_group="P", tran_state_table_offset=int(offset), commit_log_offset=int(message_id[-16:], 16),
            commit_or_rollback=TRANSACTION_COMMIT, from_transaction_check=False, msg_id=KEY,
        )  # fmt: skip
        for _ in range(2):
            assert (await unit.ask(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SUCCESS
        assert (len(stored(unit, TRANS_HALF_TOPIC)), len(stored(unit))) == (1, 1)
        assert place(await unit.send(properties=properties, sys_flag=TRANSACTION_PREPARED)) == place(first)


class TestSetting:
    @pytest.mark.parametrize("value", ["0", "999", "86400001", "10m", "-5", "9" * 30])
    async def test_a_length_out_of_range_is_refused_with_its_name(self, unit: BrokerUnit, value: str) -> None:
        answer = await make_topic(unit, "U", value)  # type: ignore[arg-type]
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert ATTRIBUTE in (answer.remark or "")
        assert value in (answer.remark or "")

    async def test_the_attribute_is_kept_as_rocketmq_keeps_attributes(self, unit: BrokerUnit) -> None:
        await asyncio.sleep(1)
        table = json.loads(unit.files.read("/data/store/config/topics.json"))["topicConfigTable"]
        assert table["T"]["attributes"] == {ATTRIBUTE: str(WINDOW_MS)}

    async def test_a_window_that_is_switched_off_forgets_its_keys(self, unit: BrokerUnit) -> None:
        await unit.send(properties={"UNIQ_KEY": KEY})
        await make_topic(unit, window_ms=None)
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))
        await make_topic(unit)
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))
        assert is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))

    async def test_a_deleted_topic_forgets_its_keys(self, unit: BrokerUnit) -> None:
        await unit.send(properties={"UNIQ_KEY": KEY})
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        await make_topic(unit)
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))

    async def test_the_newest_keys_are_known_when_there_are_too_many(self) -> None:
        async with BrokerUnit(duplicate_window_keys_max=100) as unit:
            await make_topic(unit)
            for at in range(500):
                await unit.send(properties={"UNIQ_KEY": f"k{at}"})
                await asyncio.sleep(0.01)
            assert not is_replayed(await unit.send(properties={"UNIQ_KEY": "k0"}))
            # The send of k0 has taken the room of one more.
            for at in range(402, 500):
                assert is_replayed(await unit.send(properties={"UNIQ_KEY": f"k{at}"})), at
            assert unit.broker.windows.count_keys() < 150
            assert unit.broker.windows.count_shortened() == 1
            assert unit.broker.windows.count_forgotten() >= 390


async def fill(unit: BrokerUnit) -> dict[str, tuple[str, str, str]]:
    """Send messages of each kind; return their places by key. The keys of transactions begin with `t`."""
    kinds: list[dict[str, str]] = [{}, {"DELAY": "2"}, {"TIMER_DELAY_MS": "9000"}, HALF]
    places = {}
    for at in range(24):
        key = f"t{at}" if at % 4 == 3 else f"{at:032X}"
        flag = TRANSACTION_PREPARED if at % 4 == 3 else 0
        answer = await unit.send(properties={"UNIQ_KEY": key, **kinds[at % 4]}, queue_id=at % 3, sys_flag=flag)
        places[key] = place(answer)
    answer = await send_batch(unit, "b0", "b1", queue_id=3)
    first, second = answer.ext_fields["msgId"].split(",")
    return {**places, "b0": (first, "3", "0"), "b1": (second, "3", "1")}


async def check_known(unit: BrokerUnit, places: dict[str, tuple[str, str, str]]) -> None:
    for key, expected in places.items():
        kind, flag = (HALF, TRANSACTION_PREPARED) if key[0] == "t" else ({}, 0)
        answer = await unit.send(properties={"UNIQ_KEY": key, **kind}, sys_flag=flag)
        assert (place(answer), is_replayed(answer)) == (expected, True), key


class TestRestart:
    async def test_a_stop_keeps_the_window(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            places = await fill(unit)
        async with BrokerUnit(files=unit.files, **SYNC) as again:
            await check_known(again, places)

    async def test_deliveries_do_not_change_what_is_known(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            places = await fill(unit)
            await asyncio.sleep(20)
            assert len(stored(unit)) == 20
        async with BrokerUnit(files=unit.files, **SYNC) as again:
            await check_known(again, places)

    async def test_a_delivery_is_not_a_first_send(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit, window_ms=1000)
            await unit.send(properties={"UNIQ_KEY": "a", "DELAY": "2"})
            await unit.send(properties={"UNIQ_KEY": "b", "TIMER_DELAY_MS": "4000"})
            await asyncio.sleep(5.6)
            assert len(stored(unit)) == 2
        async with BrokerUnit(files=unit.files, **SYNC) as again:
            for key in "ab":
                assert not is_replayed(await again.send(properties={"UNIQ_KEY": key}))

    async def test_sends_wait_for_the_window_and_others_do_not(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            await unit.make_topic("PLAIN")
            await unit.send(properties={"UNIQ_KEY": KEY})
        async with BrokerUnit(files=unit.files, timer_interval_ms_min=1000, **SYNC) as again:
            waits = asyncio.ensure_future(again.send(properties={"UNIQ_KEY": KEY}))
            assert (await again.send("PLAIN")).code == ResponseCode.SUCCESS
            assert not waits.done()
            assert is_replayed(await waits)

    async def test_a_send_that_waits_too_long_is_certainly_not_stored(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
        async with BrokerUnit(files=unit.files, timer_interval_ms_min=60_000, **SYNC) as again:
            answer = await again.send(properties={"UNIQ_KEY": KEY})
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "not stored" in (answer.remark or "")
            assert again.store.max_offset("T", 0) == 0

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_a_power_cut_leaves_each_message_once_and_known(self, seed: int) -> None:
        rng = Rng(seed)
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            acked: dict[str, tuple[str, str, str]] = {}
            for at in range(rng.below(40)):
                key = f"k{at}"
                acked[key] = place(await unit.send(properties={"UNIQ_KEY": key}, queue_id=at % 4))
            # These have no answer yet.
            pending = [asyncio.ensure_future(unit.send(properties={"UNIQ_KEY": f"p{at}"})) for at in range(5)]
            for _ in range(rng.below(4)):
                await asyncio.sleep(0)
            files = unit.files.crash_clone(rng)
            for task in pending:
                task.cancel()
        async with BrokerUnit(files=files, **SYNC) as again:
            await check_known(again, acked)
            for at in range(5):
                assert (await again.send(properties={"UNIQ_KEY": f"p{at}"})).code == ResponseCode.SUCCESS
            keys = [message.message_id for message in stored(again)]
            assert len(keys) == len(set(keys)) == len(acked) + 5
