"""A store on a disk, opened in this process as a broker opens it: recovered, then read through its public interface."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from gantry.client.errors import Outcome
from gantry.model.message import MessageQueue
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.runtime.clock import SystemClock
from gantry.runtime.osfilesystem import OsFileSystem
from services.broker.registry import documents
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.settings import BrokerSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import RecoveryReport
from tests.fault.brokers import BROKER, IN_A_HURRY, NEVER_FULL, SMALL_FILES
from tests.fault.history import NEVER, Found, History
from tests.fault.load import GROUP, key_of

FOR_EVER_MS = (1 << 63) - 1


class OpenedStore:
    """A store that runs without a broker."""

    def __init__(self, store: MessageStore, report: RecoveryReport) -> None:
        self.store = store
        self.report = report

    def messages(self, queues: Sequence[MessageQueue]) -> Iterator[Found]:
        """Yield every message that can be read."""
        for queue in queues:
            offset, end = 0, self.store.max_offset(queue.topic, queue.queue_id)
            while offset < end:
                result = self.store.get(queue.topic, queue.queue_id, offset, 32)
                for record in result.records:
                    message = decode_record(record)
                    assert (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
                    key = message.properties[PropertyName.UNIQ_KEY]
                    yield Found(queue, message.queue_offset, key, message.inflated_body())
                assert result.next_offset > offset, f"{queue} stands still at {offset}: {result.status}"
                offset = result.next_offset

    def assert_keys_found(self, history: History, *, until: int = NEVER) -> None:
        """Assert that every stored message is found by its key, at its offset."""
        for send in history.sends.values():
            if send.outcome is Outcome.STORED and send.ended < until:
                assert send.queue is not None, "what is stored has a place"
                records = self.store.query(send.queue.topic, key_of(send.key), 32, 0, FOR_EVER_MS).records
                # Other keys may have the same hash.
                keys = [decode_record(record).properties[PropertyName.UNIQ_KEY] for record in records]
                assert keys.count(send.key) == 1, f"{send.key} is found {keys.count(send.key)} times by its key"


def closed(folder: Path) -> MessageStore:
    """Return a store that is not started yet."""
    values = {**SMALL_FILES, **IN_A_HURRY, **NEVER_FULL, "store_path_root_dir": str(folder)}
    return MessageStore(BrokerSettings(**values), files=OsFileSystem(), clock=SystemClock())


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[OpenedStore]:
    """Start a store and stop it in order."""
    store = closed(folder)
    report = store.start()
    try:
        yield OpenedStore(store, report)
    finally:
        assert store.stop(), "the store could not be closed in order"


def read_tables(folder: Path) -> tuple[set[str], set[str], dict[MessageQueue, int]]:
    """Return topics, groups and the load's committed offsets as a starting broker reads them."""
    files, root = OsFileSystem(), str(folder)
    topics, groups, offsets = TopicTable(), GroupTable(), OffsetTable()
    documents.load_topics(files, root, topics)
    documents.load_groups(files, root, groups)
    documents.load_offsets(files, root, offsets)
    committed = {
        MessageQueue(topic, BROKER, queue_id): offset
        for key, queues in offsets.all().items()
        for topic, _, group in [key.partition("@")]
        if group == GROUP
        for queue_id, offset in queues.items()
    }
    return set(topics.all()), set(groups.all()), committed
