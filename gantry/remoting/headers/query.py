"""Looking for messages: 12 by key, 33 by their place in the CommitLog."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64


class QueryMessageHeader(Header):
    """12: messages of a topic with a key, stored between two moments (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponseHeader(Header):
    """How far the index has come: what is newer can't be found yet."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageHeader(Header):
    """33: the record at a byte of the CommitLog."""

    offset: Int64
    topic: str | None = None
