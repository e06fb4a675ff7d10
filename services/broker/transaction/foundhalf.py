"""Half messages that a decision names: read from the log, or kept in memory since their send.

Most transactions are decided soon after their half message was stored. Reading, checking and decoding its record again
took longer than the commit itself, so the content of the newest half messages stays in memory. The table only saves
time: if it has no entry, the half message is read from the log.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from gantry.model.address import pack_host
from gantry.model.message import CrcState, StoredMessage
from gantry.model.names import TRANS_HALF_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import CRC_MASK, RecordHead, crc32, decode_head, properties_without_crc
from gantry.remoting.headers.send import SendMessageHeader
from services.broker.transaction.messages import TransactionKey, real_queue, transaction_key

RECENT_MAX: Final = 20_000
"""Limit of half messages in memory."""
RECENT_BYTES_MAX: Final = 32 << 20
"""Limit of their bodies and properties together."""

_CHECK_IMMUNITY_TIME = PropertyName.CHECK_IMMUNITY_TIME
_PGROUP = f"\x02{PropertyName.PGROUP}\x01"
_PREFIX = len(_PGROUP)
# This takes half the time of a call of the class, which passes every field by name again.
_new_tuple = tuple.__new__


class FoundHalf(NamedTuple):
    """The parts of a half message that a decision needs.

    Attributes:
        key: Identifies the transaction.
        queue: Topic and queue of the message itself, or None if the half message does not name them.
        queue_offset: Queue offset in the half topic.
        physical_offset: Its position in the log.
        group: Group of the producer.
        immunity: Value of CHECK_IMMUNITY_TIME.
        body: The body as it is stored.
        properties: The encoded properties, without the checksum over the whole record. A commit stores them again.
        tag: The tag; None to look it up in the properties.
        keys: The keys; None to look them up.
        born_host: Packed address of the producer.
        flag: Flag of the application.
        sys_flag: System flag of the half message.
        reconsume_times: Number of failed deliveries.
        message: The decoded record; None if the send has proved that no hook must see the message.
    """

    key: TransactionKey
    queue: tuple[str, int] | None
    queue_offset: int
    physical_offset: int
    group: str | None
    immunity: str | None
    body: bytes
    properties: bytes
    tag: str | None
    keys: str | None
    born_host: bytes
    flag: int
    sys_flag: int
    reconsume_times: int
    message: StoredMessage | None


def decode_half(record: bytes, head: RecordHead) -> FoundHalf | None:
    """Return the half message of a record; None if the record is of another topic."""
    half = decode_head(record, 0, head, CrcState.UNCHECKED)
    if half.topic != TRANS_HALF_TOPIC:
        return None
    properties = half.properties
    return FoundHalf(
        transaction_key(half),
        real_queue(half),
        half.queue_offset,
        half.physical_offset,
        properties.get(PropertyName.PGROUP),
        properties.get(_CHECK_IMMUNITY_TIME),
        half.body,
        properties_without_crc(head.properties),
        properties.get(PropertyName.TAGS, ""),
        properties.get(PropertyName.KEYS, ""),
        pack_host(half.born_host),
        half.flag,
        half.sys_flag,
        half.reconsume_times,
        half,
    )


class RecentHalves:
    """The newest half messages that are not decided, by their physical offset. The oldest ones make room.

    Concurrency: the loop's thread.
    """

    def __init__(self, *, count_max: int = RECENT_MAX, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._halves: OrderedDict[int, FoundHalf] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._halves)

    def note(  # noqa: PLR0917 - the hot path.
        self,
        header: SendMessageHeader,
        queue_id: int,
        body: bytes,
        stored: tuple[bytes, str | None, str | None, str],
        born_host: bytes,
        sys_flag: int,
        physical_offset: int,
        queue_offset: int,
    ) -> None:
        """Note a half message that was stored without the send hooks; the arguments are those of `QuickStored`."""
        text = header.properties or ""
        # A rare property, whose value must be read from the decoded properties.
        if _CHECK_IMMUNITY_TIME in text:
            return
        searched = "\x02" + text
        start = searched.rfind(_PGROUP) + _PREFIX
        end = searched.find("\x02", start)
        properties, tag, keys, unique_key = stored
        parts = (
            (unique_key, header.born_timestamp, born_host, crc32(body) & CRC_MASK),
            (header.topic, queue_id),
            queue_offset,
            physical_offset,
            searched[start:end] if end >= 0 else searched[start:],
            None,
            body,
            properties,
            tag,
            keys,
            born_host,
            header.flag,
            sys_flag,
            header.reconsume_times or 0,
            None,
        )
        self.size_bytes += len(body) + len(properties)
        self._halves[physical_offset] = _new_tuple(FoundHalf, parts)
        while len(self._halves) > self._count_max or self.size_bytes > self._bytes_max:
            self.take(next(iter(self._halves)))

    def take(self, physical_offset: int) -> FoundHalf | None:
        """Remove and return the half message at an offset of the log; None if it is not here."""
        half = self._halves.pop(physical_offset, None)
        if half is not None:
            self.size_bytes -= len(half.body) + len(half.properties)
            assert self.size_bytes >= 0, f"{self.size_bytes} bytes of half messages"
        return half
