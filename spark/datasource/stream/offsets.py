"""The offsets of a stream, as Spark keeps them in a checkpoint.

Format (docs/formats/spark.md), version 2. The keys are sorted, because Spark compares offsets as texts:

    {"version": 2, "topics": {topic: {broker: {queue id: {"next": 7, "first": 3, "last": [621, 1700000000000]}}}}}

`next` is the next queue offset to read. `first` is the queue offset at which the batch that ends here begins. A queue
without `first` has nothing to read in that batch. So the end of a batch alone says what the batch reads, even if the
batch before ended in a queue that is gone by now. `last` is the message before `next`: the CommitLog offset of its
record, and its store time in ms. No other message of this broker ever has both. So `last` distinguishes a queue from
one that was made again under its name. `gone` is true if the queue left its topic. `from` is the queue offset that option `from`
gives, in a queue that has not reached it: messages before it are not read.

Version 1 had only the next queue offset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gantry.model.message import MessageQueue
from spark.datasource.partitions import Region

VERSION: Final = 2
FIRST: Final = 0
"""The queue offset at which a new queue begins."""


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """The identity of one message of a broker: its record's offset in the CommitLog (bytes) and its store time (wall ms).

    `stored_at_ms` is None if the record can't be read.
    """

    physical_offset: int
    stored_at_ms: int | None = None

    def is_same(self, other: "MessageIdentity") -> bool:
        """Return whether both identities are of the same message. An unknown store time counts as equal."""
        times = (self.stored_at_ms, other.stored_at_ms)
        return self.physical_offset == other.physical_offset and (None in times or times[0] == times[1])

    def __str__(self) -> str:
        return f"the message stored at {self.stored_at_ms} ms at CommitLog offset {self.physical_offset}"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a stream in a queue. The module's docstring explains the fields."""

    next: int
    first: int | None = None
    last: MessageIdentity | None = None
    is_gone: bool = False
    wanted_from: int | None = None

    @property
    def begin(self) -> int:
        """The queue offset of the next message to read."""
        return self.next if self.wanted_from is None else max(self.next, self.wanted_from)


StreamOffsets = dict[MessageQueue, StreamPosition]


def encode_offset(offsets: Mapping[MessageQueue, StreamPosition]) -> dict[str, Any]:
    """Return offsets in the form that Spark writes to the checkpoint."""
    topics: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for queue in sorted(offsets):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = _encode_position(offsets[queue])
    return {"version": VERSION, "topics": topics}


def decode_offset(offset: Mapping[str, Any]) -> StreamOffsets:
    """Decode offsets that `encode_offset` of this release or of an earlier one wrote.

    Raises:
        ValueError: A later release or another program wrote the offsets.
    """
    version = offset.get("version")
    if version not in (1, VERSION) or not isinstance(offset.get("topics"), dict):
        raise ValueError(f"checkpoint: version {version!r} of the offsets is not 1 or {VERSION}")
    try:
        places = [
            (MessageQueue(topic, broker, _decode_queue_id(queue_id)), at)
            for topic, brokers in offset["topics"].items()
            for broker, queues in brokers.items()
            for queue_id, at in queues.items()
        ]
    except AttributeError as error:
        raise ValueError(f"checkpoint: the offsets are not those of topics, brokers and queues: {error}") from error
    return {queue: _decode_position({"next": at} if version == 1 else at) for queue, at in places}


def without_batch(offsets: Mapping[MessageQueue, StreamPosition]) -> StreamOffsets:
    """Return offsets as the start of a batch, without `first`: the start of the batch before has no meaning for it."""
    return {queue: replace(at, first=None) for queue, at in offsets.items()}


def planned_regions(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Region]:
    """Return the regions that the batch between two offsets reads. Raises ValueError, as `decode_offset` does."""
    if start == end:
        return []
    ends = decode_offset(end)
    if end.get("version") == 1:
        starts = decode_offset(start)
        ends = {queue: replace(at, first=starts.get(queue, StreamPosition(FIRST)).next) for queue, at in ends.items()}
    regions = []
    for queue, at in sorted(ends.items(), key=lambda item: item[0]):
        if at.first is not None and at.first < at.next:
            region = Region(queue.topic, queue.broker_name, queue.queue_id, at.first, at.next)
            # A record after the last planned one belongs to a queue that was made again since.
            regions.append(region if at.last is None else replace(region, physical_end=at.last.physical_offset + 1))
    return regions


def _encode_position(at: StreamPosition) -> dict[str, Any]:
    position: dict[str, Any] = {"next": at.next}
    if at.first is not None:
        position["first"] = at.first
    if at.last is not None:
        position["last"] = [at.last.physical_offset, at.last.stored_at_ms]
    if at.is_gone:
        position["gone"] = True
    if at.wanted_from is not None:
        position["from"] = at.wanted_from
    return position


def _decode_queue_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"checkpoint: {text!r} is no queue id")
    return int(text)


def _decode_position(position: Mapping[str, Any]) -> StreamPosition:
    try:
        first, last, wanted_from = position.get("first"), position.get("last"), position.get("from")
        identity = None if last is None else MessageIdentity(int(last[0]), None if last[1] is None else int(last[1]))
        return StreamPosition(
            int(position["next"]),
            first=None if first is None else int(first),
            last=identity,
            is_gone=position.get("gone") is True,
            wanted_from=None if wanted_from is None else int(wanted_from),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint: {position!r} is no position in a queue") from error
