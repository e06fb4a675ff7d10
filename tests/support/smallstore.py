"""A store in memory whose records all have one size, so that a test knows which file holds which record."""

from collections.abc import Iterable

from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus, RecoveryReport
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

FILE_BYTES = 4096
RECORD_BYTES = 200
PER_FILE = FILE_BYTES // RECORD_BYTES
_FOR_EVER_MS = (1 << 63) - 1
_BODY = bytes(RECORD_BYTES - 91 - len("T") - 20)


class SmallStore:
    """A started store, and its disk."""

    def __init__(self, files: MemFileSystem | None = None, **settings: int) -> None:
        self._settings = settings
        self.clock = FakeClock()
        self.files = files or MemFileSystem(self.clock)
        self.start()

    def start(self, *, thorough: bool = False) -> RecoveryReport:
        self.store: MessageStore = make_store(self.files, self.clock, small_settings(**self._settings))
        return self.store.start(thorough=thorough)

    def put(self, count: int, topic: str = "T", *, first_key: int | None = None) -> None:
        """Put messages to queue 0 of a topic with a one-letter name, with or without numbers as keys; all are
        acknowledged.
        """
        for number in range(count):
            self.clock.advance(10)
            properties = b"" if first_key is None else b"UNIQ_KEY\x01%06d\x02" % (first_key + number)
            body = _BODY[: len(_BODY) - len(properties)]
            result = self.store.put(topic, 0, body, properties, born_at_ms=1, born_host=HOST)
            assert result.status is PutStatus.OK, result
            assert result.next_offset - result.physical_offset == RECORD_BYTES
            self.store.request_flush()
            self.store.dispatch()
            assert self.store.flushed_offset == result.next_offset

    def checkpoint(self) -> None:
        self.clock.advance(10_000)
        self.store.maintain()

    def kill(self) -> None:
        """End the process; the page cache stays."""
        self.files.locked.clear()

    def cut_power(self, seed: int = 0) -> None:
        self.files = self.files.crash_clone(Rng(seed))

    def log_path(self, number: int) -> str:
        """Return the path of a CommitLog file, counted from 0."""
        return f"{ROOT}/commitlog/{file_name(number * FILE_BYTES)}"

    def keys_found(self, keys: Iterable[int]) -> list[int]:
        """Return those numbers whose key finds a message of topic T, and assert that each is found once."""
        found = []
        for key in keys:
            records = self.store.query("T", f"{key:06d}", 32, 0, _FOR_EVER_MS).records
            assert len(records) <= 1, f"{key} is found {len(records)} times"
            found += [key] * len(records)
        return found

    def offsets(self) -> list[int]:
        """Return the queue offsets that can be read."""
        return list(read_queue(self.store, "T", 0))
