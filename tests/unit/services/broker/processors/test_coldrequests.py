"""Requests whose data is not in memory: the answers are unchanged, and only the reader's worker waits for the disk.

The map of a file that was dropped shows wrong bytes, so that a read through the map would change the answer.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from gantry.model.record import decode_record, iter_records
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedQuery, FirstUnconsumedResults
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.workers import InlineWorker
from tests.support.brokerunit import BrokerUnit, pull_header
from tests.support.faultfilesystem import FaultFileSystem, FaultRule

COUNT = 20


class Watched(InlineWorker):
    """A worker that shows whether it runs a job."""

    def __init__(self) -> None:
        super().__init__()
        self.is_running = False

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        self.is_running = True
        try:
            return super().submit(job)
        finally:
            self.is_running = False


@asynccontextmanager
async def everything_cold(unit: "Cold") -> AsyncIterator[None]:
    """Drop the store from memory; at the end, assert that only the reader's worker read the dropped bytes."""
    files = unit.files
    folders = ["/data/store/commitlog", "/data/store/consumequeue/T/0", "/data/store/index"]
    dropped = [f"{folder}/{name}" for folder in folders for name in files.list_dir(folder)]
    for path in dropped:
        files.drop_from_memory(path)
    await asyncio.sleep(0.3)  # Advance the time until the store no longer trusts any page that it has seen in memory.
    elsewhere: list[str] = []

    def read_begins(path: str, at: int, size: int) -> None:
        if path in dropped and not unit.reader.is_running:
            elsewhere.append(path)
        if "commitlog" in path and at <= unit.unreadable_at < at + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    files.read_begins = read_begins
    reads = unit.broker.core.cold.reads
    yield
    assert unit.broker.core.cold.reads > reads, "the worker has read nothing"
    assert elsewhere == []
    assert files.cold_touches == []


class Cold(BrokerUnit):
    """A broker with 20 messages of topic T, queue 0, written too long ago to count as recent."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.reader = Watched()
        self.readers = [self.reader]
        self.unreadable_at = -1

    async def filled(self, body_bytes: int = 300) -> list[bytes]:
        await self.make_topic()
        for number in range(COUNT):
            answer = await self.send(
                body=bytes([number]) * body_bytes, properties={"KEYS": "k", "TAGS": "ab"[number % 2]}
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(1)
        hot = await self.pull()
        self.records = [bytes(hot.body_bytes[at : at + size]) for at, size in spans(hot.body_bytes)]
        assert len(self.records) == COUNT
        return self.records

    def make_cold(self) -> None:
        """Remove the log from the page cache; the broker can still write it."""
        folder = "/data/store/commitlog"
        self.files.cold.update(f"{folder}/{name}" for name in self.files.list_dir(folder))


def spans(body: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        yield at, size
        at += size


async def test_a_pull_is_answered_byte_for_byte_with_one_round_for_units_and_one_for_all_records():
    async with Cold() as unit:
        records = await unit.filled()
        async with everything_cold(unit):
            answer = await unit.pull()
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.body_bytes == b"".join(records)
        assert unit.broker.core.cold.reads == 2
        assert [path for path, _, _ in unit.files.advised if "/index/" not in path] == [
            "/data/store/commitlog/00000000000000000000"
        ]


@pytest.mark.parametrize(
    ("sql", "code", "numbers"),
    [("TAGS = 'b'", ResponseCode.SUCCESS, range(1, COUNT, 2)), ("TAGS = 'c'", ResponseCode.PULL_RETRY_IMMEDIATELY, ())],
)
async def test_a_pull_with_sql_reads_many_records_in_one_round_whether_they_match_or_not(sql, code, numbers):
    async with Cold() as unit:
        records = await unit.filled()
        async with everything_cold(unit):
            answer = await unit.pull(subscription=sql, expression_type="SQL92")
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (code, str(COUNT))
        assert answer.body_bytes == b"".join(records[number] for number in numbers)
        assert unit.broker.core.cold.reads == 2


async def test_hot_pulls_are_answered_while_a_cold_one_waits():
    async with Cold() as unit:
        await unit.filled()
        await unit.send(topic="U", body=b"young")
        unit.broker.core.cold._idle.clear()  # The disk does not answer.
        unit.make_cold()
        await asyncio.sleep(0.3)
        waiting = asyncio.create_task(unit.pull(timeout_ms=5_000))
        other = unit.connect()
        header = pull_header("U", 1)
        await asyncio.sleep(0.1)
        assert (await unit.send(topic="U")).code == ResponseCode.SUCCESS
        hot = await unit.ask(RequestCode.PULL_MESSAGE, header, connection=other)
        assert hot.code == ResponseCode.SUCCESS, hot.remark
        assert unit.broker.core.cold.waiting_count == 1
        unit.connection.client.abort("the consumer goes")
        await asyncio.wait([waiting])
        assert unit.broker.core.cold.waiting_count == 0


async def test_the_commit_of_a_pull_does_not_wait_for_the_disk():
    async with Cold() as unit:
        await unit.filled()
        unit.broker.core.cold._idle.clear()
        unit.make_cold()
        await asyncio.sleep(0.3)
        header = pull_header("T", 5, sys_flag=1 | 4, commit_offset=5)
        waiting = asyncio.create_task(unit.ask(RequestCode.PULL_MESSAGE, header, timeout_ms=1_000))
        await asyncio.sleep(0.1)
        assert unit.broker.tables.offsets.find("T", "g", 0) == 5
        waiting.cancel()


async def test_a_pull_above_the_limit_of_waiting_reads_is_told_to_retry():
    async with Cold() as unit:
        await unit.filled()
        cold = unit.broker.core.cold
        cold._idle.clear()
        cold._waiting_max = 0
        unit.make_cold()
        await asyncio.sleep(0.3)
        answer = await unit.pull()
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark.startswith("[OVERLOAD]system busy")


async def test_records_the_disk_can_not_read_are_skipped_and_counted():
    async with Cold() as unit:
        records = await unit.filled(body_bytes=3000)
        unit.unreadable_at = decode_record(records[7]).physical_offset + 100
        found = []
        offset = 0
        async with everything_cold(unit):
            while offset < COUNT:
                answer = await unit.pull(offset=offset)
                found += (
                    [record.queue_offset for record in iter_records(answer.body_bytes)] if answer.body_bytes else []
                )
                offset = int(answer.ext_fields["nextBeginOffset"])
        assert found == [number for number in range(COUNT) if number != 7]
        assert unit.store.state().damaged_reads == 1
        assert unit.broker.core.cold.unreadable_reads == 1
        offset = decode_record(records[6]).physical_offset
        answer = await unit.ask(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)})
        assert answer.body_bytes == records[6]  # The bytes behind it can't be read.


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("is_cold", [True, False])
async def test_unreadable_units_are_answered_with_an_error_that_names_the_file(is_cold: bool, number: int):
    """Both the read without waiting and the read in the reader's thread used to raise, which logged tracebacks."""
    queue = "/data/store/consumequeue/T/0"
    async with Cold() as unit:
        await unit.filled()
        await asyncio.sleep(0.3)
        if is_cold:
            unit.files.cold.update(f"{queue}/{name}" for name in unit.files.list_dir(queue))

        def read_begins(path: str, at: int, size: int) -> None:
            if path.startswith(queue):
                raise OSError(number, os.strerror(number), path)

        unit.files.read_begins = read_begins
        with structlog.testing.capture_logs() as lines:
            answer = await unit.pull()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert queue in answer.remark
        assert [line for line in lines if "exc_info" in line or "exception" in line] == []


async def test_without_cache_information_of_the_kernel_reads_are_slower_but_succeed():
    async with Cold() as unit:
        records = await unit.filled()
        await asyncio.sleep(0.3)
        fault = FaultRule("mincore")
        for file in unit.store._log.files:
            file.file = FaultFileSystem(unit.files, fault).wrap(file.file)
        answer = await unit.pull()
        assert answer.body_bytes == b"".join(records)
        assert fault.seen > 0


async def test_a_cold_query_by_key_finds_the_same_as_a_hot_one():
    async with Cold() as unit:
        await unit.filled()
        ext = {"topic": "T", "key": "k", "maxNum": "5", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        hot = await unit.ask(RequestCode.QUERY_MESSAGE, ext=ext)
        assert hot.code == ResponseCode.SUCCESS, hot.remark
        async with everything_cold(unit):
            cold = await unit.ask(RequestCode.QUERY_MESSAGE, ext=ext)
        assert cold.body_bytes == hot.body_bytes == b"".join(unit.records[-5:])


READS: dict[str, tuple[int, dict[str, str]]] = {
    "by offset": (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
    "by time": (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "T", "queueId": "0", "timestamp": "1700000000001"},
    ),
    "first stored": (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": "0"}),
    "committed": (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", "topic": "T", "queueId": "0"}),
    "topic's statistics": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    "queues' states": (RequestCode.GANTRY_QUEUE_STATES, {"topic": "T"}),
    "units": (RequestCode.GANTRY_UNITS, {"topic": "T", "queueId": "0", "offset": "0", "maxUnits": "50"}),
}


@pytest.mark.parametrize("name", READS)
async def test_reads_of_cold_files_answer_as_from_memory(name: str):
    async with Cold() as unit:
        await unit.filled()
        code, ext = READS[name]
        hot = await unit.ask(code, ext=ext)
        assert hot.code == ResponseCode.SUCCESS, hot.remark
        async with everything_cold(unit):
            cold = await unit.ask(code, ext=ext)
        assert answer_of(cold) == answer_of(hot)


@pytest.mark.parametrize("first_is_cold", [True, False])
@pytest.mark.parametrize("name", READS)
async def test_reads_over_a_cold_and_a_hot_file_answer_as_from_memory(name: str, first_is_cold: bool):
    async with Cold(mapped_file_size_commit_log=8192) as unit:
        await unit.filled()
        code, ext = READS[name]
        hot = await unit.ask(code, ext=ext)
        folder = "/data/store/commitlog"
        first, second, *_ = sorted(unit.files.list_dir(folder))
        unit.files.drop_from_memory(f"{folder}/{first if first_is_cold else second}")
        await asyncio.sleep(0.3)
        assert answer_of(await unit.ask(code, ext=ext)) == answer_of(hot)
        assert unit.files.cold_touches == []


async def test_heads_and_runtime_info_are_the_same_cold_and_hot():
    async with Cold() as unit:
        await unit.filled()
        queries = FirstUnconsumedQueries(
            queries=[FirstUnconsumedQuery(topic="T", queue_id=0, offset=offset) for offset in (0, 3, 19)]
        )
        hot = await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=queries.encode())
        async with everything_cold(unit):
            cold = await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=queries.encode())
            figures = await unit.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert cold.body_bytes.split(b"nowMs")[0] == hot.body_bytes.split(b"nowMs")[0]
        earliest_ms = decode_record(unit.records[0]).stored_at_ms
        assert f'"earliestMessageTimeStamp":"{earliest_ms}"'.encode() in figures.body_bytes


@pytest.mark.parametrize("sql", ["TAGS = 'b'", "TAGS = 'c'"])
async def test_sql_filters_of_heads_find_the_same_cold_and_hot(sql: str):
    async with Cold() as unit:
        await unit.filled()
        queries = FirstUnconsumedQueries(
            queries=[FirstUnconsumedQuery(topic="T", queue_id=0, offset=offset, sql=sql) for offset in (0, 2, 18)]
        )
        hot = await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=queries.encode())
        async with everything_cold(unit):
            cold = await unit.ask(RequestCode.GANTRY_FIRST_UNCONSUMED, body=queries.encode())
        heads, expected = (FirstUnconsumedResults.decode(answer.body_bytes).heads for answer in (cold, hot))
        assert heads == expected
        assert [head.queue_offset for head in heads] == ([1, 3, 19] if "b" in sql else [None] * 3)


async def test_statistics_of_many_queues_are_collected_in_slices():
    async with Cold() as unit:
        await unit.make_topic("M", queues=100)
        spent: list[float] = []
        turns = unit.broker.core.turns
        spend = turns.spend
        turns.spend = lambda share: spent.append(share) or spend(share)  # type: ignore[method-assign]
        answer = await unit.ask(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "M"})
        assert answer.body_bytes.count(b"queueId") == 100
        assert len(spent) == 25


def answer_of(answer: RemotingCommand) -> tuple[int, dict[str, str], bytes]:
    return answer.code, dict(answer.ext_fields), answer.body_bytes.split(b"topicPutTps")[0]
