"""Looking for messages: 12 by key, 33 by their place in the CommitLog."""

from collections.abc import Sequence

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import FRAME_BYTES_MAX, RemotingCommand
from gantry.remoting.headers import QueryMessageHeader, QueryMessageResponseHeader, ViewMessageHeader
from services.broker.policy import Policy
from services.broker.processors.refusal import RefusalError
from services.broker.store.messagestore import MessageStore

# A frame, less what a header may take.
REPLY_BODY_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024


class QueryProcessor:
    """Answers queries. The index has hashes only, so a reply may hold messages of other keys; clients look again."""

    def __init__(self, *, store: MessageStore, policy: Policy) -> None:
        self._store = store
        self._policy = policy

    def by_key(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """12: messages of a topic with a key or, with `_UNIQUE_KEY_QUERY`, a unique key."""
        header = QueryMessageHeader.from_ext(request.ext_fields)
        count_max = self._policy.default_query_max_num if header.unique_key_query else header.max_num
        if count_max < 1:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"maxNum={count_max}: is less than 1")
        result = self._store.query(header.topic, header.key, count_max, header.begin_timestamp, header.end_timestamp)
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=result.index_last_update_timestamp,
            index_last_update_phyoffset=result.index_last_update_phyoffset,
        )
        if not result.records:
            return RemotingCommand.response_to(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                answer,
                remark="can not find message, maybe time range not correct",
            )
        body = b"".join(_newest_that_fit(result.records))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer, body=body)

    def by_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """33: the record that begins at a byte of the CommitLog."""
        header = ViewMessageHeader.from_ext(request.ext_fields)
        record = self._store.record_at(header.offset) if header.offset >= 0 else None
        if record is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=bytes(record))


def _newest_that_fit(records: Sequence[bytes]) -> Sequence[bytes]:
    """Leave the oldest out where all of them together would not fit a frame; one always fits."""
    size = 0
    for index in range(len(records) - 1, -1, -1):
        size += len(records[index])
        if size > REPLY_BODY_BYTES_MAX:
            return records[min(index + 1, len(records) - 1) :]
    return records
