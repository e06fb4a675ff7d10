"""The duplicate windows of a broker's topics: which topics have one, and which keys each of them knows.

A topic has a window if it has the attribute DUPLICATE_WINDOW (gantry/model/topic.py). A message of a client counts for the topic that
the client names, also if it waits elsewhere first: as a half message, or for its time. A delivery of such a message by
the broker does not count.

Concurrency: the loop's thread. Between the search for a key and the append of its message nothing else runs.
"""

import asyncio
from binascii import Error as NotHexError
from binascii import unhexlify
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from gantry.model.names import is_dlq_topic, is_retry_topic
from gantry.model.topic import DUPLICATE_WINDOW, DUPLICATE_WINDOW_MS_MAX, TopicConfig
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.digits import parse_digits
from gantry.runtime.rng import Rng
from gantry.runtime.telemetry import logger
from services.broker.duplicates.keytable import DIGEST_BYTES, KeyTable, Place
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings

READY_WAIT_S: Final = 2.0
"""Time for which a send waits after a start until the window of its topic is read. Clients wait 3 s by default."""
_HEX_DIGITS: Final = 2 * DIGEST_BYTES
_SECRET_BITS: Final = 128

log = logger("broker.duplicates")


class DuplicateWindow:
    """The window of one topic.

    Attributes:
        topic: Name of the topic.
        table: The keys.
        ready: Set once the keys from before the start are known.
        replayed: Number of messages that were not stored again.
    """

    __slots__ = ("_clock", "_freed", "_secret", "ready", "replayed", "table", "topic")

    def __init__(self, topic: str, table: KeyTable, clock: Clock, secret: bytes, *, is_new: bool) -> None:
        self.topic = topic
        self.table = table
        self.ready = asyncio.Event()
        if is_new:
            self.ready.set()
        self.replayed = 0
        self._clock = clock
        self._secret = secret
        # Keys that became free before the keys from before the start were known.
        self._freed: list[tuple[bytes, int, int]] = []

    def digest(self, key: str) -> bytes:
        """Return the digest of a key. That of RocketMQ's clients are the bytes that their key shows in hex.

        Any other key has a digest that nobody can foresee, so that no message can pretend to be another one.
        """
        if len(key) == _HEX_DIGITS and key.upper() == key:
            try:
                return unhexlify(key)
            except (NotHexError, ValueError):
                pass
        return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, key=self._secret).digest()

    def find(self, digest: bytes) -> Place | None:
        """Return the place of the first message with this key; None if the message is new."""
        table = self.table
        if table.heads[hash(digest) & table.mask] < table.first:
            return None
        return table.find(digest, self._clock.now_ms())

    def free(self, key: str, last_offset: int, delivery_second: int) -> None:
        """Forget a key: its message will never be delivered. The arguments are those of KeyTable.remove."""
        freed = (self.digest(key), last_offset, delivery_second)
        self.table.remove(*freed)
        if not self.ready.is_set():
            self._freed.append(freed)

    def loaded(self) -> None:
        """Let the sends begin: the keys from before the start are in the table."""
        for freed in self._freed:
            self.table.remove(*freed)
        self._freed.clear()
        self.ready.set()

    async def wait_ready(self) -> None:
        """Wait until the keys from before the start are known. Raises RefusalError if that takes too long."""
        try:
            async with asyncio.timeout(READY_WAIT_S):
                await self.ready.wait()
        except TimeoutError:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"[STARTING]topic {self.topic}: the broker still reads which messages its duplicate window has; the "
                "message is not stored, send it again",
            ) from None


class DuplicateWindows:
    """All windows."""

    def __init__(self, topics: TopicTable, live_settings: LiveSettings, clock: Clock, rng: Rng) -> None:
        """Make the windows of the topics that exist at the start. They become ready when their keys are read."""
        self._topics = topics
        self._live_settings = live_settings
        self._clock = clock
        self._secret = rng.below(1 << _SECRET_BITS).to_bytes(_SECRET_BITS // 8)
        self._windows: dict[str, DuplicateWindow] = {}
        # The counts of windows that are gone.
        self._replayed_before = self._forgotten_before = 0
        for topic, config in topics.all().items():
            if window_ms := window_ms_of(config):
                self._add(topic, window_ms, is_new=False)

    def find(self, topic: str) -> DuplicateWindow | None:
        """Return the window of a topic, or None."""
        return self._windows.get(topic)

    def __len__(self) -> int:
        """Return the number of topics with a window."""
        return len(self._windows)

    def all(self) -> Iterable[DuplicateWindow]:
        """Return all windows."""
        return list(self._windows.values())

    def topic_changed(self, topic: str) -> None:
        """Follow the configuration of a topic that was created, changed or deleted.

        A window that is switched on knows the messages from now on. So does one that becomes longer: it does not know
        messages that had left the shorter one.
        """
        window, window_ms = self._windows.get(topic), window_ms_of(self._topics.find(topic))
        if window is None:
            if window_ms:
                self._add(topic, window_ms, is_new=True)
        elif window_ms:
            window.table.window_ms = window_ms
        else:
            del self._windows[topic]
            self._replayed_before += window.replayed
            self._forgotten_before += window.table.forgotten

    def tick(self) -> None:
        """Remove ended keys, and divide the room among the topics. A timer calls this."""
        now_ms = self._clock.now_ms()
        settings = self._live_settings.current
        keys_max = settings.duplicate_window_keys_max
        for window in self._windows.values():
            window.table.sweep(now_ms)
        counts = [window.table.count for window in self._windows.values()]
        if sum(counts) > settings.duplicate_window_keys_total_max:
            keys_max = min(keys_max, fair_share(counts, settings.duplicate_window_keys_total_max))
        for window in self._windows.values():
            if window.table.keys_max != keys_max:
                window.table.limit(keys_max)

    def count_keys(self) -> int:
        """Return the number of keys of all windows."""
        return sum(window.table.count for window in self.all())

    def count_replayed(self) -> int:
        """Return the number of messages that were not stored again."""
        return self._replayed_before + sum(window.replayed for window in self.all())

    def count_forgotten(self) -> int:
        """Return the number of keys that ended before their windows did."""
        return self._forgotten_before + sum(window.table.forgotten for window in self.all())

    def count_shortened(self) -> int:
        """Return the number of windows that the limit of keys makes shorter now."""
        now_ms = self._clock.now_ms()
        return sum(window.table.known_from_ms > now_ms - window.table.window_ms for window in self.all())

    def _add(self, topic: str, window_ms: int, *, is_new: bool) -> None:
        table = KeyTable(window_ms, self._live_settings.current.duplicate_window_keys_max)
        self._windows[topic] = DuplicateWindow(topic, table, self._clock, self._secret, is_new=is_new)


def window_ms_of(config: TopicConfig | None) -> int:
    """Return the length of a topic's window; 0 if it has none."""
    if config is None or is_retry_topic(config.topic_name) or is_dlq_topic(config.topic_name):
        return 0
    # The file may come from another program, so the value is not checked yet.
    return parse_digits(config.attributes.get(DUPLICATE_WINDOW, ""), DUPLICATE_WINDOW_MS_MAX) or 0


def fair_share(counts: Iterable[int], total: int) -> int:
    """Return the limit for each topic with which all of them together have at most `total` keys; at least 1.

    A topic with fewer keys than the limit keeps all of them. The others get the same number.
    """
    ordered = sorted(counts)
    left = total
    for index, count in enumerate(ordered):
        share = left // (len(ordered) - index)
        if count > share:
            return max(share, 1)
        left -= count
    return max(total, 1)
