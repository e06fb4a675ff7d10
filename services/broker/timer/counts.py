"""The number of waiting messages by real topic, as Apache's broker keeps it in config/timermetrics.

The counts are for people: a crash may make them wrong by the changes of the last seconds.
"""

from collections.abc import Callable

from gantry.model.errors import CorruptRecordError
from gantry.model.topic import DataVersion
from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.timerfiles import TopicCount, decode_timer_metrics, encode_timer_metrics

log = logger("broker.timer")


class TopicCounts:
    """The counts of one broker."""

    def __init__(self, files: FileSystem, path: str, clock: Clock) -> None:
        self._files = files
        self._path = path
        self._clock = clock
        self._version = DataVersion()
        self._counts: dict[str, TopicCount] = {}
        self.is_changed = False

    def load(self) -> None:
        """Read the file. A damaged one counts as missing, because nothing depends on it."""
        try:
            self._version, self._counts = decode_timer_metrics(self._files.read(self._path))
        except FileNotFoundError:
            return
        except CorruptRecordError as error:
            log.warning(
                "the counts of waiting messages can't be read, they start at 0", path=self._path, reason=str(error)
            )

    def add(self, topic: str, change: int) -> None:
        """Change the count of a topic."""
        now_ms = self._clock.now_ms()
        self._version = self._version.next(now_ms)
        count = self._counts.get(topic)
        if count is None:
            self._counts[topic] = TopicCount(change, now_ms)
        else:
            count.count += change
            count.at_ms = now_ms
        self.is_changed = True

    def find(self, topic: str) -> int:
        """Return the number of waiting messages of a topic."""
        count = self._counts.get(topic)
        return 0 if count is None else count.count

    def topics(self) -> dict[str, int]:
        """Return the number of waiting messages by topic."""
        return {topic: count.count for topic, count in list(self._counts.items())}

    def forget(self, topic: str) -> None:
        """Forget a deleted topic."""
        if self._counts.pop(topic, None) is not None:
            self.is_changed = True

    def encode(self) -> bytes:
        """Return the text of the file, which is also the reply to request 61."""
        return encode_timer_metrics(self._version, self._counts)

    def take(self) -> Callable[[], None]:
        """Return a function that writes the present counts to the file, in any thread; it raises OSError."""
        version, counts = self._version, dict(self._counts)
        self.is_changed = False
        return lambda: write_atomically(self._files, self._path, encode_timer_metrics(version, counts))
