"""Requests that find messages: 12 by key, 33 by the offset in the CommitLog."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64


class QueryMessageHeader(Header):
    """12: find the messages of a topic that have a key and were stored between two times (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponseHeader(Header):
    """The last message in the index. Newer messages can't be found yet."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageHeader(Header):
    """33: get the record at a byte offset of the CommitLog."""

    offset: Int64
    topic: str | None = None
