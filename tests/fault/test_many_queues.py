"""Thousands of queues: their use of disk space and descriptors, and their effect on each other."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry.client.admin import Admin
from gantry.client.errors import Outcome
from gantry.client.producer import Producer
from gantry.model.message import Message, MessageQueue
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import SystemClock
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.layout import CONSUME_QUEUE_FILE_BYTES
from services.broker.settings import BrokerSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from tests.fault.brokers import BROKER, IN_A_HURRY, NEVER_FULL, SMALL_FILES, assert_verifies, broker
from tests.fault.history import Found
from tests.fault.load import client, read_all
from tests.support.brokerprocess import NamesrvProcess
from tests.support.faultfilesystem import FaultFileSystem, FaultRule

FULL_LENGTH = {"mapped_file_size_consume_queue": CONSUME_QUEUE_FILE_BYTES}
FILE_BYTES_MAX = 8 << 10
DESCRIPTORS = 300
TOPICS, QUEUES_EACH = 250, 8


@contextlib.contextmanager
def opened(folder: Path, files: FileSystem, **settings: object) -> Iterator[MessageStore]:
    """A store with queue files of full length, stopped in order at the end."""
    values = {**SMALL_FILES, **FULL_LENGTH, **IN_A_HURRY, **NEVER_FULL, **settings}
    store = MessageStore(
        BrokerSettings(store_path_root_dir=str(folder), **values),  # type: ignore[arg-type]
        files=files,
        clock=SystemClock(),
    )
    store.start()
    yield store
    assert store.stop()


def put(store: MessageStore, topic: str, queue_id: int = 0) -> PutStatus:
    """Put a message and dispatch it; return the result."""
    result = store.put(topic, queue_id, b"body", b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=bytes(8))
    store.write_out()
    store._group_commit.flush_now()
    store.dispatch()
    return result.status


def blocks_of(path: Path) -> int:
    """Return the bytes that a file takes from the disk."""
    return path.stat().st_blocks * 512


def test_a_queue_takes_blocks_only_for_its_units(tmp_path: Path) -> None:
    with opened(tmp_path / "store", OsFileSystem()) as store:
        for queue_id in range(200):
            assert put(store, "T", queue_id) is PutStatus.OK
        files = sorted((tmp_path / "store/consumequeue/T").glob("*/*"))
        assert len(files) == 200
        assert {path.stat().st_size for path in files} == {CONSUME_QUEUE_FILE_BYTES}
        assert max(map(blocks_of, files)) <= FILE_BYTES_MAX
    with opened(tmp_path / "store", OsFileSystem()) as store:
        assert {store.max_offset("T", queue_id) for queue_id in range(200)} == {1}
        assert max(map(blocks_of, files)) <= FILE_BYTES_MAX, "opening a store fills no holes"
    assert_verifies(tmp_path / "store")


@pytest.mark.parametrize("operation", ["make_dirs", "create", "allocate"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_new_queue_without_a_file_fails_alone(tmp_path: Path, operation: str, error: int) -> None:
    files = FaultFileSystem(OsFileSystem())
    with opened(tmp_path / "store", files) as store:
        assert put(store, "OLD") is PutStatus.OK
        files.rules.append(FaultRule(operation, "*/NEW/*", error))
        for _ in range(3):
            end = store.max_physical_offset
            result = store.put("NEW", 7, b"body", b"", born_at_ms=1, born_host=bytes(8))
            assert result.status is PutStatus.CREATE_FILE_FAILED
            assert "queue 7 of topic NEW can't be made: " in result.reason
            assert store.max_physical_offset == end, "nothing of it was stored"
            assert put(store, "OLD") is PutStatus.OK
        assert store.max_offset("OLD", 0) == 4
        files.rules.clear()
        assert put(store, "NEW", 7) is PutStatus.OK
        assert store.max_offset("NEW", 7) == 1
    assert_verifies(tmp_path / "store")


async def test_a_broker_serves_more_queues_than_it_may_have_descriptors(
    tmp_path: Path, namesrv: NamesrvProcess
) -> None:
    process = broker(tmp_path / BROKER, namesrv.address, server_connections_max=20, **FULL_LENGTH)
    process.limit_descriptors(DESCRIPTORS)
    queues = [MessageQueue(f"T{topic}", BROKER, number) for topic in range(TOPICS) for number in range(QUEUES_EACH)]
    with process:
        async with client(namesrv.address) as engine:
            for topic in range(TOPICS):
                await Admin(engine).create_topic(TopicConfig(f"T{topic}", QUEUES_EACH, QUEUES_EACH))
            producer = Producer(engine, "P")
            for turn in range(2):
                for queue in queues:
                    sent = await producer.send(Message(queue.topic, b"%d" % turn), queue=queue)
                    assert sent.outcome is Outcome.STORED
            assert_is_whole(await read_all(engine, queues), queues)
        assert "Too many open files" not in process.log
        process.kill()
        process.start()
        async with client(namesrv.address) as engine:
            assert_is_whole(await read_all(engine, queues), queues)
        assert process.terminate() == 0
    assert_verifies(process.store)


def assert_is_whole(found: list[Found], queues: list[MessageQueue]) -> None:
    """Assert that each queue has its two messages in order."""
    assert [(each.queue, each.queue_offset, each.body) for each in found] == [
        (queue, turn, b"%d" % turn) for queue in queues for turn in range(2)
    ]
