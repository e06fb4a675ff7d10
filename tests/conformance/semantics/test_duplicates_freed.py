"""Promises about keys of duplicate windows whose messages are never delivered, or are of another kind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import RecallMessageHeader, RescheduleMessageHeader
from gantry.storeformat.timerfiles import decode_timer_metrics
from services.broker.store.settings import FlushDiskType
from tests.conformance.semantics.test_duplicates import KEY, batch, is_replayed, make_topic, place, stored
from tests.conformance.semantics.test_timer import pass_time
from tests.support.brokerunit import BrokerUnit, send_header
from tests.support.transactions import COMMIT, ROLLBACK, TransactionProducer

SYNC: dict[str, Any] = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(**SYNC) as unit:
        assert (await make_topic(unit)).code == ResponseCode.SUCCESS
        yield unit


async def recall(unit: BrokerUnit, sent: RemotingCommand) -> None:
    header = RecallMessageHeader(topic="T", recall_handle=sent.ext_fields["recallHandle"])
    answer = await unit.ask(RequestCode.RECALL_MESSAGE, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def bodies(unit: BrokerUnit) -> list[bytes]:
    return [message.body for message in stored(unit)]


def timed(unit: BrokerUnit, ms: int = 20_000, key: str = KEY) -> dict[str, str]:
    return {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(unit.clock.now_ms() + ms)}


class TestRecall:
    async def test_a_recalled_message_frees_its_key(self, unit: BrokerUnit) -> None:
        await recall(unit, await unit.send(properties=timed(unit), body=b"recalled"))
        again = await unit.send(properties={"UNIQ_KEY": KEY}, body=b"again")
        assert not is_replayed(again)
        assert is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}))
        await asyncio.sleep(25)
        assert bodies(unit) == [b"again"]

    async def test_the_same_time_can_be_asked_for_again(self, unit: BrokerUnit) -> None:
        properties = timed(unit)
        await recall(unit, await unit.send(properties=properties, body=b"recalled"))
        again = await unit.send(properties=properties, body=b"again")
        assert not is_replayed(again)
        await asyncio.sleep(25)
        assert bodies(unit) == [b"again"]

    async def test_the_second_message_can_be_recalled_too(self, unit: BrokerUnit) -> None:
        properties = timed(unit)
        for _ in range(3):
            sent = await unit.send(properties=properties)
            assert not is_replayed(sent)
            await recall(unit, sent)
        await asyncio.sleep(25)
        assert bodies(unit) == []

    @pytest.mark.parametrize("is_recalled_twice", [False, True])
    async def test_a_time_beyond_the_rolls_can_be_asked_for_again(self, is_recalled_twice: bool) -> None:
        async with BrokerUnit(timer_roll_window_slot=60, **SYNC) as unit:
            await make_topic(unit, window_ms=3_600_000)
            properties = timed(unit, 400_000)
            sent = await unit.send(properties=properties, body=b"recalled")
            await pass_time(unit, 100)
            await recall(unit, sent)
            await pass_time(unit, 70)
            again = await unit.send(properties=properties, body=b"again")
            assert not is_replayed(again)
            await pass_time(unit, 50)
            if is_recalled_twice:
                await recall(unit, again)
            await pass_time(unit, 300)
            assert bodies(unit) == ([] if is_recalled_twice else [b"again"])

    async def test_a_recall_of_another_time_frees_nothing(self, unit: BrokerUnit) -> None:
        sent = await unit.send(properties=timed(unit), body=b"first")
        await unit.make_topic("PLAIN")
        other = await unit.send("PLAIN", properties=timed(unit, 30_000))
        handle = RecallMessageHeader(topic="PLAIN", recall_handle=other.ext_fields["recallHandle"])
        assert (await unit.ask(RequestCode.RECALL_MESSAGE, handle)).code == ResponseCode.SUCCESS
        assert place(await unit.send(properties={"UNIQ_KEY": KEY})) == place(sent)

    async def test_a_recall_whose_effect_is_unknown_keeps_the_key(self) -> None:
        async with BrokerUnit(timer_interval_ms_min=60_000, **SYNC) as unit:
            await make_topic(unit)
            sent = await unit.send(properties=timed(unit))
            await recall(unit, sent)
            assert place(await unit.send(properties={"UNIQ_KEY": KEY})) == place(sent)

    async def test_a_start_reads_recalls(self) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            await recall(unit, await unit.send(properties=timed(unit), body=b"recalled"))
            await recall(unit, await unit.send(properties=timed(unit, key="k"), body=b"recalled"))
            second = await unit.send(properties=timed(unit, 25_000, key="k"), body=b"second")
            late = await unit.send(properties=timed(unit, 4_500, key="late"))
            await recall(unit, late)
        async with BrokerUnit(files=unit.files, **SYNC) as again:
            again.clock.set_wall(unit.clock.now_ms())
            assert not is_replayed(await again.send(properties={"UNIQ_KEY": KEY}, body=b"again"))
            assert place(await again.send(properties={"UNIQ_KEY": "k"})) == place(second)
            assert place(await again.send(properties={"UNIQ_KEY": "late"})) == place(late)
            await asyncio.sleep(30)
            assert sorted(bodies(again)) == [b"again", b"second"]


class TestTransaction:
    async def test_a_rollback_frees_the_key(self, unit: BrokerUnit) -> None:
        producer = TransactionProducer(unit)
        half = await producer.begin(properties={"UNIQ_KEY": KEY})
        assert (await producer.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}, body=b"again"))
        assert bodies(unit) == [b"again"]

    async def test_a_rolled_back_transaction_can_begin_again(self, unit: BrokerUnit) -> None:
        producer = TransactionProducer(unit)
        await producer.end(await producer.begin(properties={"UNIQ_KEY": KEY}), ROLLBACK)
        half = await producer.begin(properties={"UNIQ_KEY": KEY}, body=b"second")
        assert not is_replayed(half)
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert bodies(unit) == [b"second"]

    @pytest.mark.parametrize("decision", [None, COMMIT])
    async def test_a_message_can_not_have_the_key_of_a_transaction(
        self, unit: BrokerUnit, decision: int | None
    ) -> None:
        producer = TransactionProducer(unit)
        half = await producer.begin(properties={"UNIQ_KEY": KEY})
        if decision is not None:
            await producer.end(half, decision)
        answer = await unit.send(properties={"UNIQ_KEY": KEY})
        assert answer.code == ResponseCode.GANTRY_KEY_IN_USE
        assert KEY in (answer.remark or "")
        answer = await unit.ask(RequestCode.SEND_BATCH_MESSAGE, send_header(batch=True), body=batch("other", KEY))
        assert answer.code == ResponseCode.GANTRY_KEY_IN_USE
        assert len(stored(unit)) == (0 if decision is None else 1)
        assert is_replayed(await producer.begin(properties={"UNIQ_KEY": KEY}))

    @pytest.mark.parametrize("properties", [{}, {"TIMER_DELAY_MS": "20000"}, {"DELAY": "3"}])
    async def test_a_transaction_can_not_have_the_key_of_a_message(
        self, unit: BrokerUnit, properties: dict[str, str]
    ) -> None:
        await unit.send(properties={"UNIQ_KEY": KEY, **properties})
        answer = await unit.send(properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "pg"}, sys_flag=4)
        assert answer.code == ResponseCode.GANTRY_KEY_IN_USE

    @pytest.mark.parametrize("is_checked", [False, True])
    async def test_a_start_reads_decisions(self, is_checked: bool) -> None:
        settings = {**SYNC, "transaction_time_out": 1_000, "transaction_check_interval": 2_000}
        async with BrokerUnit(**settings) as unit:
            await make_topic(unit, window_ms=600_000)
            producer = TransactionProducer(unit)
            await producer.join()
            halves = {key: await producer.begin(properties={"UNIQ_KEY": key}) for key in ("open", "rolled", "done")}
            if is_checked:
                await asyncio.sleep(10)
                assert producer.checks
            await producer.end(halves["rolled"], ROLLBACK)
            await producer.end(halves["done"], COMMIT)
            twice = await producer.begin(properties={"UNIQ_KEY": "twice"})
            await producer.end(twice, ROLLBACK)
            twice = await producer.begin(properties={"UNIQ_KEY": "twice"})
            await asyncio.sleep(5)
        async with BrokerUnit(files=unit.files, **settings) as again:
            again.clock.set_wall(unit.clock.now_ms())
            assert not is_replayed(await again.send(properties={"UNIQ_KEY": "rolled"}))
            producer = TransactionProducer(again)
            for key, half in (("open", halves["open"]), ("done", halves["done"]), ("twice", twice)):
                assert (await again.send(properties={"UNIQ_KEY": key})).code == ResponseCode.GANTRY_KEY_IN_USE, key
                assert place(await producer.begin(properties={"UNIQ_KEY": key})) == place(half), key

    async def test_a_transaction_that_is_given_up_keeps_its_key(self) -> None:
        settings = {
            **SYNC, "transaction_time_out": 1_000, "transaction_check_interval": 1_000, "transaction_check_max": 1,
        }  # fmt: skip
        async with BrokerUnit(**settings) as unit:
            await make_topic(unit, window_ms=600_000)
            producer = TransactionProducer(unit)
            await producer.join()
            await producer.begin(properties={"UNIQ_KEY": KEY})
            await asyncio.sleep(20)
            assert (await unit.send(properties={"UNIQ_KEY": KEY})).code == ResponseCode.GANTRY_KEY_IN_USE
        async with BrokerUnit(files=unit.files, **settings) as again:
            again.clock.set_wall(unit.clock.now_ms())
            assert (await again.send(properties={"UNIQ_KEY": KEY})).code == ResponseCode.GANTRY_KEY_IN_USE


class TestReplacement:
    async def test_a_message_that_is_moved_to_another_time_is_not_taken_for_a_duplicate(self, unit: BrokerUnit) -> None:
        properties = timed(unit)
        sent = await unit.send(properties=properties, body=b"first")
        second = int(properties["TIMER_DELIVER_MS"]) // 1000 - 1
        moved = await unit.send(
            properties={**timed(unit, 40_000), "GANTRY_REPLACES_SECOND": str(second)}, body=b"moved"
        )
        assert not is_replayed(moved)
        await recall(unit, sent)
        assert place(await unit.send(properties={"UNIQ_KEY": KEY})) == place(moved)
        await asyncio.sleep(45)
        assert bodies(unit) == [b"moved"]

    @pytest.mark.parametrize("second", ["0", "-1", "x", "1700000001", "4294967295"])
    async def test_only_the_second_of_the_known_message_counts(self, unit: BrokerUnit, second: str) -> None:
        sent = await unit.send(properties={"UNIQ_KEY": KEY})
        again = await unit.send(properties={**timed(unit), "GANTRY_REPLACES_SECOND": second})
        assert place(again) == place(sent)


async def reschedule(unit: BrokerUnit, handle: str, ms: int) -> RemotingCommand:
    header = RescheduleMessageHeader(topic="T", recall_handle=handle, deliver_at=unit.clock.now_ms() + ms)
    return await unit.ask(RequestCode.GANTRY_RESCHEDULE_MESSAGE, header)


class TestNewTime:
    @pytest.mark.parametrize("ms", [-5_000, 10_000, 40_000])
    async def test_a_message_with_a_new_time_keeps_its_key_and_comes_once(self, unit: BrokerUnit, ms: int) -> None:
        sent = await unit.send(properties=timed(unit), body=b"moved")
        moved = await reschedule(unit, sent.ext_fields["recallHandle"], ms)
        assert (moved.code, moved.ext_fields["gantryOutcome"]) == (ResponseCode.SUCCESS, "recalled")
        for wait_s in (0, 2, 50):
            await asyncio.sleep(wait_s)
            again = await unit.send(properties={"UNIQ_KEY": KEY}, body=b"again")
            assert is_replayed(again)
            assert again.ext_fields.get("recallHandle") == moved.ext_fields.get("recallHandle")
        (message,) = stored(unit)
        assert message.body == b"moved"
        assert "GANTRY_REPLACES_SECOND" in message.properties

    @pytest.mark.parametrize("ms", [-5_000, 40_000])
    async def test_a_start_reads_the_same(self, ms: int) -> None:
        async with BrokerUnit(**SYNC) as unit:
            await make_topic(unit)
            moved = await reschedule(unit, (await unit.send(properties=timed(unit))).ext_fields["recallHandle"], ms)
            before = await unit.send(properties={"UNIQ_KEY": KEY})
            assert before.ext_fields.get("recallHandle") == moved.ext_fields.get("recallHandle")
        async with BrokerUnit(files=unit.files, **SYNC) as again:
            again.clock.set_wall(unit.clock.now_ms())
            assert place(await again.send(properties={"UNIQ_KEY": KEY})) == place(before)
            await asyncio.sleep(50)
            assert len(stored(again)) == 1

    async def test_a_recall_of_the_new_time_frees_the_key(self, unit: BrokerUnit) -> None:
        moved = await reschedule(unit, (await unit.send(properties=timed(unit))).ext_fields["recallHandle"], 40_000)
        await recall(unit, moved)
        assert not is_replayed(await unit.send(properties={"UNIQ_KEY": KEY}, body=b"again"))
        await asyncio.sleep(45)
        assert bodies(unit) == [b"again"]

    async def test_a_message_that_was_sent_again_after_a_recall_gets_another_time(self, unit: BrokerUnit) -> None:
        properties = timed(unit)
        await recall(unit, await unit.send(properties=properties, body=b"recalled"))
        again = await unit.send(properties=properties, body=b"again")
        handle = again.ext_fields["recallHandle"]
        assert (await reschedule(unit, handle, 40_000)).ext_fields["gantryOutcome"] == "recalled"
        assert (await reschedule(unit, handle, 50_000)).ext_fields["gantryOutcome"] == "gone"
        await asyncio.sleep(60)
        assert bodies(unit) == [b"again"]

    async def test_the_answers_to_recalls_are_true_if_the_message_is_sent_again(self, unit: BrokerUnit) -> None:
        properties, outcomes = timed(unit), []
        for _ in range(2):
            handle = (await unit.send(properties=properties)).ext_fields["recallHandle"]
            header = RecallMessageHeader(topic="T", recall_handle=handle)
            answers = [await unit.ask(RequestCode.RECALL_MESSAGE, header) for _ in range(2)]
            outcomes += [answer.ext_fields["gantryOutcome"] for answer in answers]
        assert outcomes == ["recalled", "gone", "recalled", "gone"]
        await asyncio.sleep(25)
        assert bodies(unit) == []
        metrics = await unit.ask(RequestCode.GET_TIMER_METRICS)
        assert [topic.count for topic in decode_timer_metrics(metrics.body_bytes)[1].values()] == [0]

    async def test_a_copy_of_a_recall_frees_no_key(self) -> None:
        async with BrokerUnit(timer_roll_window_slot=60, **SYNC) as unit:
            await make_topic(unit, window_ms=3_600_000)
            properties = timed(unit, 200_000)
            await recall(unit, await unit.send(properties=properties, body=b"recalled"))
            again = await unit.send(properties=properties, body=b"again")
            await pass_time(unit, 100)
            assert place(await unit.send(properties={"UNIQ_KEY": KEY})) == place(again)
            await pass_time(unit, 150)
            assert bodies(unit) == [b"again"]
