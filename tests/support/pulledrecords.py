"""Records as a pull returns them, for tests of their readers."""

from collections.abc import Iterable, Mapping

from gantry.model.address import Address, pack_host
from gantry.model.compression import Compression, compress
from gantry.model.message import encode_properties
from gantry.model.record import encode_record

BORN_AT_MS = 1_700_000_000_123
STORED_AT_MS = 1_700_000_000_456
BORN_HOST = Address("192.0.2.7", 40_001)
STORE_HOST = Address("127.0.0.1", 10_911)


def unique_key(offset: int) -> str:
    """Return a unique key of the usual length."""
    return f"7F000001{offset:024X}"


def record(
    offset: int,
    body: bytes = b"hello",
    *,
    topic: str = "T",
    queue_id: int = 0,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    message_id: str | None = "",
    born_host: Address = BORN_HOST,
    store_host: Address = STORE_HOST,
    compression: Compression | None = None,
    whole_record_crc: bool = True,
    reconsume_times: int = 0,
) -> bytes:
    """Return one record; its physical offset is a thousand times its queue offset.

    `message_id` is the unique key; an empty string makes one from the offset, None leaves it out.
    """
    all_properties: dict[str, str] = {}
    if message_id is not None:
        all_properties["UNIQ_KEY"] = message_id or unique_key(offset)
    if tag is not None:
        all_properties["TAGS"] = tag
    all_properties.update(properties or {})
    sys_flag = (0x10 if born_host.is_v6 else 0) | (0x20 if store_host.is_v6 else 0)
    if compression is not None:
        body, sys_flag = compress(body, compression), sys_flag | compression.sys_flag
    return encode_record(
        queue_id=queue_id, flag=0, queue_offset=offset, physical_offset=offset * 1000, sys_flag=sys_flag,
        born_at_ms=BORN_AT_MS, born_host=pack_host(born_host), stored_at_ms=STORED_AT_MS,
        store_host=pack_host(store_host), reconsume_times=reconsume_times, prepared_transaction_offset=0, body=body,
        topic=topic.encode(), properties=encode_properties(all_properties), whole_record_crc=whole_record_crc,
    )  # fmt: skip


def pulled(offsets: Iterable[int], *, topic: str = "T", queue_id: int = 0, body: bytes = b"hello") -> bytes:
    """Return the body of a pull reply with a record for each offset."""
    return b"".join(record(offset, body, topic=topic, queue_id=queue_id) for offset in offsets)
