"""The delivery progress of the delay levels: level → offset of the first message that is not yet delivered.

Concurrency: the loop's thread only.
"""

from collections.abc import Callable, Mapping

from gantry.model.topic import DataVersion

VERSION_STEP = 200
"""Number of deliveries after which the table gets a new version, as in RocketMQ."""


class DelayOffsetTable:
    """The progress of each level that has delivered a message.

    Attributes:
        version: Version of the table.
        offsets: Level → offset in the queue of the level.
        on_save: Requests a save of the table.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.offsets: dict[int, int] = {}
        self.on_save: Callable[[], None] = lambda: None
        self._moves_count = 0
        self._is_dirty = False

    def load(self, version: DataVersion, offsets: Mapping[int, int]) -> None:
        """Load the content of the file."""
        self.version = version
        self.offsets = dict(offsets)

    def advance(self, level: int, offset: int, now_ms: int) -> None:
        """Note that all messages of the level before `offset` are delivered, and that these deliveries are durable."""
        assert offset >= self.offsets.get(level, 0), f"level {level} goes back from {self.offsets[level]} to {offset}"
        self._moves_count += 1
        if self._moves_count % VERSION_STEP == 0:
            self.version = self.version.next(now_ms)
        self.correct(level, offset)

    def correct(self, level: int, offset: int) -> None:
        """Set the progress of a level to an offset within its queue."""
        self.offsets[level] = offset
        self._is_dirty = True

    def save(self) -> None:
        """Request a save if the table has changed since the last one."""
        if self._is_dirty:
            self._is_dirty = False
            self.on_save()
