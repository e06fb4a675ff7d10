"""Searches for messages: by key (request 12) and by position in the CommitLog (33).

Both read cold bytes, those that are not in memory, through the ColdReader, so that they do not block the loop. A search
by key is long work, so it runs in slices (turns.py).

Messages of a deleted topic are not found, although their records and index entries stay until retention removes them. A
later topic of the same name would seem to have them. The same holds for records that wait for a deleted topic.
"""

from collections.abc import Mapping

from gantry.model.errors import RecordError
from gantry.model.message import decode_properties
from gantry.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.record import parse_head
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import FRAME_BYTES_MAX, RemotingCommand
from gantry.remoting.headers import QueryMessageHeader, QueryMessageResponseHeader, ViewMessageHeader
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.processors.reading import read_cold, reading
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.settings import LiveSettings
from services.broker.store.index.keysearch import KeySearch
from services.broker.store.messagestore import MessageStore
from services.broker.turns import Turns

# The largest frame, less 1 MiB for the header of the reply.
REPLY_BODY_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024

# A slice takes about 0.5 ms: an index entry takes 1 µs, and a record's checksum takes 1 µs per KiB.
_SLICE_ENTRIES = 500
_SLICE_BYTES = 512 * 1024
_WAITING = frozenset({SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()})


class QueryProcessor:
    """Answers queries.

    The index holds only hashes, so a reply may contain messages with other keys. Clients compare the keys again.

    Concurrency: the loop's thread only.
    """

    def __init__(self, *, store: MessageStore, live_settings: LiveSettings, cold: ColdReader, turns: Turns) -> None:
        self._store = store
        self._live_settings = live_settings
        self._cold = cold
        self._turns = turns

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.QUERY_MESSAGE: self.by_key,
                code.VIEW_MESSAGE_BY_ID: reading(self._cold, self.by_offset),
            }
        )

    async def by_key(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """12: return the newest messages of a topic with a key, oldest first.

        With `_UNIQUE_KEY_QUERY` the key is a unique key (UNIQ_KEY). The broker then uses its own limit for the number
        of messages, `default_query_max_num`, instead of the request's, as RocketMQ does.
        """
        header = QueryMessageHeader.from_ext(request.ext_fields)
        count_max = self._live_settings.current.default_query_max_num if header.unique_key_query else header.max_num
        if count_max < 1:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"maxNum={count_max}: is less than 1")
        search = self._store.search(header.topic, header.key, count_max, header.begin_timestamp, header.end_timestamp)
        records: list[bytes] = []
        if search is not None:
            await self._search(channel, search)
            records = await self._newest_that_fit(channel, sorted(search.found, reverse=True))
        stored_at_ms, physical_offset = self._store.index_last_update()
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=stored_at_ms, index_last_update_phyoffset=physical_offset
        )
        if not records:
            remark = "can not find message, maybe time range not correct"
            if search is not None and search.gave_up:
                remark = (
                    f"can not find message among the newest {search.walked} index entries of the key's slot; older "
                    "ones were not looked at"
                )
            return RemotingCommand.response_to(request, ResponseCode.QUERY_NOT_FOUND, answer, remark=remark)
        records.reverse()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer, body=b"".join(records))

    async def _search(self, channel: Channel, search: KeySearch) -> None:
        def step() -> None:
            walked = search.walked
            try:
                search.step(_SLICE_ENTRIES)
            finally:
                self._turns.spend((search.walked - walked) / _SLICE_ENTRIES)

        while not search.is_done:
            await read_cold(self._cold, channel, step, turns=self._turns)

    async def _newest_that_fit(self, channel: Channel, offsets: list[int]) -> list[bytes]:
        """Return the readable records at these offsets, newest first, until the next one does not fit the reply.

        The first record always fits.
        """
        taken: list[bytes] = []
        size, position = 0, 0

        def read() -> list[bytes | None]:
            records = self._store.records(offsets[position:], _SLICE_BYTES)
            self._turns.spend(sum(len(record) for record in records if record is not None) / _SLICE_BYTES)
            return records

        while position < len(offsets):
            records = await read_cold(self._cold, channel, read, turns=self._turns)
            position += len(records)
            for record in records:
                if record is None or self._is_dead(record):
                    continue
                size += len(record)
                if taken and size > REPLY_BODY_BYTES_MAX:
                    return taken
                taken.append(record)
        return taken

    def by_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """33: return the record that begins at this byte of the CommitLog."""
        header = ViewMessageHeader.from_ext(request.ext_fields)
        record = self._store.record_at(header.offset) if header.offset >= 0 else None
        if record is None or self._is_dead(record):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=bytes(record))

    def _is_dead(self, record: bytes | memoryview) -> bool:
        """Return whether the topic of a message was deleted after the message was stored."""
        try:
            head = parse_head(record)
        except RecordError:
            return False
        topic = head.topic
        if topic in _WAITING:
            topic = decode_properties(head.properties).get(PropertyName.REAL_TOPIC, "").encode()
        return self._store.is_dead(topic, head.physical_offset, head.stored_at_ms)


def build(broker: Broker) -> QueryProcessor:
    """Build the processor from the broker's parts."""
    core = broker.core
    return QueryProcessor(store=broker.store, live_settings=core.live_settings, cold=core.cold, turns=core.turns)
