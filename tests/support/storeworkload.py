"""A workload on a store in memory, and the messages that may be found after a power cut at some moment."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gantry.model.address import Address, pack_host
from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from gantry.runtime.workers import InlineWorker
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from services.broker.store.settings import FlushDiskType, StoreLimits, StoreSettings
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

ROOT = "/store"
HOST = pack_host(Address("10.0.0.5", 10911))
HOST_V6 = pack_host(Address("fd00::2", 10911))
QUEUES = [("A", 0), ("A", 1), ("B", 0), ("%RETRY%group", 0)]
HOUR_MS = 3_600_000


def small_settings(**changes: Any) -> StoreSettings:
    """Return settings under which every kind of file is full after a few messages."""
    values: dict[str, Any] = {
        "store_path_root_dir": ROOT,
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 200,
        "max_hash_slot_num": 8,
        "max_index_num": 32,
        "file_reserved_time": 1,
        "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    }
    return StoreSettings(**(values | changes))


def make_store(files: Any, clock: FakeClock, settings: StoreSettings | None = None, **arguments: Any) -> MessageStore:
    """Return a store, not started, whose workers run inline."""
    workers = {name: InlineWorker() for name in ("flush_worker", "making_worker", "chores_worker")}
    defaults = {"limits": StoreLimits(log_files_ahead_max=1), **workers}
    return MessageStore(
        settings or small_settings(), files=files, clock=clock, store_host=HOST, **(defaults | arguments)
    )


@dataclass
class Sent:
    """A message that was put."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    next_offset: int
    body: bytes
    unique_key: str
    stored_at_ms: int


@dataclass
class Workload:
    """Puts messages and does everything else that a broker does, at random but repeatably."""

    clock: FakeClock
    rng: Rng
    settings: StoreSettings = field(default_factory=small_settings)
    sent: list[Sent] = field(default_factory=list)
    flushed_offset: int = 0
    """The reported physical offset: every record before it was acknowledged."""
    number: int = 0
    under_way: dict[str, bytes] = field(default_factory=dict)
    """Bodies by unique key of a batch that is being put: its first records may be there before the others."""
    open_files_max: int = 1_000

    def open(self, files: MemFileSystem) -> MessageStore:
        """Start a store that reports its flushes to this workload."""
        store = make_store(
            files, self.clock, self.settings, on_flushed=self._flushed, open_files_max=self.open_files_max
        )
        store.start()
        self.flushed_offset = store.flushed_offset
        return store

    def _flushed(self, offset: int) -> None:
        self.flushed_offset = offset

    def acknowledged(self) -> list[Sent]:
        """Return the messages that senders know to be stored."""
        return [sent for sent in self.sent if sent.next_offset <= self.flushed_offset]

    def step(self, store: MessageStore) -> None:
        """Do one random thing."""
        steps: list[tuple[int, Callable[[MessageStore], None]]] = [
            (50, self.put_one),
            (10, self.put_batch),
            (25, self.flush),
            (8, self.maintain),
            (2, self.expire),
        ]
        chosen = self.rng.below(sum(weight for weight, _ in steps))
        for weight, act in steps:
            chosen -= weight
            if chosen < 0:
                act(store)
                return

    def _message(self) -> tuple[bytes, bytes, str]:
        self.number += 1
        key = f"U{self.number:05d}"
        body = f"{self.number}:".encode() + self.rng.bytes(self.rng.choice((0, 5, 60, 300)))
        keys = self.rng.choice(("", "", f"KEYS\x01k{self.number % 5} common\x02"))
        tag = self.rng.choice(("", "TAGS\x01red\x02", "TAGS\x01blue\x02"))
        return body, f"{tag}{keys}UNIQ_KEY\x01{key}\x02".encode(), key

    def put_one(self, store: MessageStore) -> None:
        """Put a message."""
        topic, queue_id = self.rng.choice(QUEUES)
        body, properties, key = self._message()
        host = self.rng.choice((HOST, HOST, HOST_V6))
        self.clock.advance(self.rng.below(50))
        result = store.put(topic, queue_id, body, properties, born_at_ms=1, born_host=host)
        assert result.status is PutStatus.OK, result
        self.sent.append(
            Sent(
                topic, queue_id, result.queue_offset, result.physical_offset, result.next_offset, body, key,
                result.stored_at_ms,
            )
        )  # fmt: skip
        if self.rng.chance(0.5):
            store.dispatch()  # Acknowledged with ASYNC_FLUSH, and not on the disk yet.

    def put_batch(self, store: MessageStore) -> None:
        """Put some messages as a batch."""
        topic, queue_id = self.rng.choice(QUEUES)
        messages = [self._message() for _ in range(2 + self.rng.below(4))]
        items = [(0, body, properties, None, None, None) for body, properties, _ in messages]
        self.under_way = {key: body for body, _, key in messages}
        result = store.put_batch(topic, queue_id, items, born_at_ms=1, born_host=HOST)
        self.under_way = {}
        assert result.status is PutStatus.OK, result
        ends = (*result.physical_offsets[1:], result.next_offset)
        for index, (body, _, key) in enumerate(messages):
            # A batch is acknowledged as a whole or not at all.
            self.sent.append(
                Sent(
                    topic, queue_id, result.queue_offset + index, result.physical_offsets[index], ends[-1], body, key,
                    result.stored_at_ms,
                )
            )  # fmt: skip

    def flush(self, store: MessageStore) -> None:
        """End a turn of the loop."""
        store.request_flush()
        store.dispatch()

    def maintain(self, store: MessageStore) -> None:
        """Let time pass."""
        self.clock.advance(self.rng.choice((100, 1_500, 11_000)))
        store.maintain()

    def expire(self, store: MessageStore) -> None:
        """Let files grow old, and remove the expired ones."""
        self.clock.advance(2 * HOUR_MS)
        self.put_one(store)
        self.flush(store)
        store.maintain()
        store.clean_expired()


def read_queue(store: MessageStore, topic: str, queue_id: int) -> dict[int, tuple[int, bytes, str]]:
    """Return physical offset, body and unique key of every readable message of a queue, by queue offset."""
    found: dict[int, tuple[int, bytes, str]] = {}
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        for record in result.records:
            message = decode_record(record)
            assert message.crc.is_good, f"{topic}/{queue_id} {message.queue_offset}: handed out damaged"
            assert (message.topic, message.queue_id) == (topic, queue_id)
            assert offset <= message.queue_offset < result.next_offset
            assert message.queue_offset not in found
            found[message.queue_offset] = (message.physical_offset, message.body, message.message_id)
        assert result.next_offset > offset, f"reading {topic}/{queue_id} stands still at {offset}: {result}"
        offset = result.next_offset
    assert list(found) == sorted(found), "queue order"
    return found
