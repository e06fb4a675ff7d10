"""The tables that a broker keeps beside the messages.

The start reads them from config/*.json and checks them against the store.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from gantry.model.topic import DataVersion
from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from services.broker.identity import BrokerIdentity
from services.broker.registry import documents
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.groups import GroupTable, system_groups
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.persistence import Persistence
from services.broker.registry.producers import ProducerTable
from services.broker.registry.queuelocks import QueueLocks
from services.broker.registry.senders import SenderTable
from services.broker.registry.topics import TopicTable, system_topics
from services.broker.settings import BrokerSettings

log = logger("broker.tables")

CLAMPED_LOGGED_MAX: Final = 100
"""Largest number of topics and groups, and of queues of each, that a start logs: more than a person reads."""


class Tables:
    """The tables that the broker keeps beside the messages, read from the store's config files."""

    def __init__(self, settings: BrokerSettings, identity: BrokerIdentity, *, files: FileSystem, clock: Clock) -> None:
        """Read the files. Raises StartupError if one can't be read."""
        root = settings.store_path_root_dir
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = OffsetTable()
        self.producers = ProducerTable()
        self.senders = SenderTable()
        self.consumers = ConsumerTable()
        self.queue_locks = QueueLocks()
        self.delay_offsets = DelayOffsetTable()
        self._topics_file = documents.load_topics(files, root, self.topics)
        self._groups_file = documents.load_groups(files, root, self.groups)
        self._offsets_file = documents.load_offsets(files, root, self.offsets)
        self._resets_file = documents.load_resets(files, root, self.offsets.resets)
        self._delay_offsets_file = documents.load_delay_offsets(files, root, self.delay_offsets)
        self.kept = documents.load_kept_settings(files, root)
        self.topics.add_missing(system_topics(identity, settings))
        self.groups.add_missing(system_groups())
        # If a name server knew this address with another store, the new version shows it that this table is a new one.
        born = DataVersion(timestamp=clock.now_ms())
        for table in (self.topics, self.groups, self.offsets, self.delay_offsets):
            if table.version == DataVersion():
                table.version = born

    def keep(self, persistence: Persistence) -> None:
        """Register the tables with `persistence`, which writes them to their files."""
        persistence.add(documents.TOPICS_FILE, self._topics_file, documents.topics_text(self.topics))
        persistence.add(documents.GROUPS_FILE, self._groups_file, documents.groups_text(self.groups))
        # A reset must be on disk no later than the offsets that it protects.
        persistence.add(documents.RESETS_FILE, self._resets_file, documents.resets_text(self.offsets.resets))
        persistence.add(documents.OFFSETS_FILE, self._offsets_file, documents.offsets_text(self.offsets))
        name = documents.DELAY_OFFSETS_FILE
        persistence.add(name, self._delay_offsets_file, documents.delay_offsets_text(self.delay_offsets))
        self.delay_offsets.on_save = lambda: persistence.mark(name)

    def clamp_offsets(self, end_of: Callable[[str, int], int]) -> None:
        """Set committed offsets beyond the end of their queue back to the end.

        Such an offset remains if a crash lost messages, or if its topic was deleted.

        Args:
            end_of: Function that returns the max offset of a queue in the recovered store; 0 if the queue does not
                exist.
        """
        pairs: dict[tuple[str, str], dict[int, str]] = {}
        for topic, group, queue_id, offset, end in self.offsets.clamp(end_of):
            pairs.setdefault((topic, group), {})[queue_id] = f"{offset} -> {end}"
        for (topic, group), queues in islice(pairs.items(), CLAMPED_LOGGED_MAX):
            log.warning(
                "committed offsets lay beyond the end of their queues, and were set back to it",
                topic=topic,
                group=group,
                queues=dict(islice(queues.items(), CLAMPED_LOGGED_MAX)),
                count=len(queues),
            )
        if len(pairs) > CLAMPED_LOGGED_MAX:
            log.warning("so did those of other topics and groups", count=len(pairs) - CLAMPED_LOGGED_MAX)
