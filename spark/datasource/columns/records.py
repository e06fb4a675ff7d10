"""Decodes the records of one queue to Arrow columns, thousands at a time.

Nearly all records are alike: version 1, IPv4 hosts, a body that is not compressed. This module decodes them on arrays:
it gathers the heads into one table and compares lengths and checksums as columns, and Arrow cuts bodies and properties
out of the bytes. `gantry.model.record` decodes all other records, and the ones that fail these checks, one at a time.
It also decides which records are damaged.

The starts of the records must be known: `bounds_of` finds them in the body of a pull, and ConsumeQueue units have them
for a CommitLog.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gantry.model import sysflag
from gantry.model.errors import RecordError
from gantry.model.message import CRC_PROPERTY_PREFIX, CrcState, StoredMessage
from gantry.model.messageid import encode_packed_stored_id
from gantry.model.propertyname import PropertyName, is_reserved_property
from gantry.model.record import (
    CRC_MASK,
    CRC_PROPERTY_BYTES,
    RECORD_BYTES_MIN,
    RECORD_MAGIC_V1,
    TOPIC_BYTES_MAX_V1,
    check_head,
    crc32,
    decode_head,
    find_properties,
    parse_head,
)
from gantry.storeformat.manifest import StoreManifest
from spark.datasource.columns.acceptance import NO_FILTERS, RecordFilters
from spark.datasource.columns.bytecolumns import Bytes, Int64s, Octets, hosts, micros, slice_bytes, stored_ids, windows
from spark.datasource.columns.propertycolumns import split_properties
from spark.datasource.columns.recordbounds import EVERYTHING, Bounds, Damage, RowFilter
from spark.datasource.schema import ACCEPTED_BY

INFLATED_BYTES_MAX: Final = 64 << 20
"""Size of decompressed bodies with which a batch ends."""
# The layout that gantry.model.record describes, for two IPv4 hosts.
_HEAD: Final = np.dtype(
    [
        ("size", ">i4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born_at", ">i8"),
        ("born_host", "V8"), ("stored_at", ">i8"), ("store_host", "V8"), ("reconsume_times", ">i4"),
        ("prepared", ">i8"), ("body_length", ">i4"),
    ]
)  # fmt: skip
_HEAD_BYTES: Final = 88
assert _HEAD.itemsize == _HEAD_BYTES
_UNUSUAL: Final = sysflag.HOSTS_V6_MASK | sysflag.COMPRESSED

_CRC_PREFIX: Final = np.frombuffer(CRC_PROPERTY_PREFIX, np.uint8)
_CRC_DIGITS: Final = slice(len(_CRC_PREFIX), len(_CRC_PREFIX) + 10)
assert _CRC_DIGITS.stop + 1 == CRC_PROPERTY_BYTES
_CRC_WEIGHTS: Final = 10 ** np.arange(10, dtype=np.int64)  # The least significant digit comes first.


class _PlainRecords(NamedTuple):
    """The valid records that were found on arrays."""

    rows: npt.NDArray[np.intp]
    """The indexes of the records among the bounds."""
    heads: npt.NDArray[Any]
    body_starts: Int64s
    property_starts: Int64s
    property_ends: Int64s
    """The ends of the properties, without the record's own checksum."""

    def take(self, chosen: npt.NDArray[np.bool_]) -> "_PlainRecords":
        return self if chosen.all() else _PlainRecords(*(column[chosen] for column in self))


class _DecodedRecord(NamedTuple):
    """A valid record that was decoded alone."""

    message: StoredMessage
    stored_id: str
    properties: bytes
    """The encoded properties."""


class RecordDecoder:
    """Makes batches of the records of one queue.

    Concurrency: it keeps no state between calls, and no reference to the arguments of a call.
    """

    def __init__(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        schema: pa.Schema,
        *,
        manifest: StoreManifest | None = None,
        filters: RecordFilters = NO_FILTERS,
    ) -> None:
        """Make a decoder.

        Args:
            topic: The topic that each record must have.
            broker: The name of the records' broker. Records do not contain it.
            queue_id: The queue id that each record must have.
            schema: The Arrow schema of kind `messages`, with `accepted_by` or without it.
            manifest: The manifest of the store; it says where the whole-record checksum is required.
            filters: The filters whose numbers `accepted_by` has.
        """
        self._topic, self._broker, self._queue_id, self._schema = topic, broker, queue_id, schema
        self._manifest, self._filters = manifest, filters
        self._says_filters = ACCEPTED_BY in schema.names
        name = topic.encode()
        self._topic_field = np.frombuffer(bytes([min(len(name), 255)]) + name, np.uint8)
        self._is_v1_topic = len(name) <= TOPIC_BYTES_MAX_V1

    def decode(
        self, data: Bytes, bounds: Bounds, wanted: RowFilter = EVERYTHING
    ) -> Iterator[tuple[pa.RecordBatch | None, list[Damage]]]:
        """Yield batches in the order of the bounds (None for one without records), each with its damaged records.

        A batch ends when its decompressed bodies reach INFLATED_BYTES_MAX: a body can be a thousand times as large as its
        record.

        Args:
            data: The bytes or the map that holds the records, with less than 2 GiB of records.
            bounds: The bounds of the records.
            wanted: The filter for the valid records.
        """
        while len(bounds.starts):
            batch, damages, count = self._decode_some(data, bounds, wanted)
            yield batch, damages
            bounds = bounds.take(np.arange(count, len(bounds.starts)))

    def _decode_some(
        self, data: Bytes, bounds: Bounds, wanted: RowFilter
    ) -> tuple[pa.RecordBatch | None, list[Damage], int]:
        """Return one batch, its damaged records, and the number of records that it covers."""
        plain, count = self._find_plain(data, bounds), len(bounds.starts)
        is_plain = np.zeros(count, bool)
        is_plain[plain.rows] = True
        plain = plain.take(wanted.take_heads(plain.heads))
        batch = self._plain_batch(data, plain)
        if batch is None:  # The properties can't be parsed on arrays.
            is_plain[plain.rows] = False
        if is_plain.all():
            return (batch if len(plain.rows) else None), [], count
        rows, others, damages, end = self._decode_others(data, bounds, np.flatnonzero(~is_plain), wanted)
        if batch is not None and end < count:
            plain = plain.take(plain.rows < end)
            batch = self._plain_batch(data, plain)
        if batch is None or not len(plain.rows):
            return others, damages, end
        if others is None:
            return batch, damages, end
        order = np.argsort(np.concatenate([plain.rows, rows]), kind="stable")
        table = pa.Table.from_batches([batch, others]).take(pa.array(order))
        return table.combine_chunks().to_batches()[0], damages, end

    def stored_at(self, data: Bytes, bounds: Bounds) -> Int64s:
        """Return the store times of the records in ms; -1 for each record that is not valid."""
        plain = self._find_plain(data, bounds)
        stored_at_ms = np.full(len(bounds.starts), -1, np.int64)
        stored_at_ms[plain.rows] = plain.heads["stored_at"]
        is_plain = np.zeros(len(bounds.starts), bool)
        is_plain[plain.rows] = True
        for row in np.flatnonzero(~is_plain).tolist():
            found = self._examine(data, bounds, row)
            if isinstance(found, _DecodedRecord):
                stored_at_ms[row] = found.message.stored_at_ms
        return stored_at_ms

    def _find_plain(self, data: Bytes, bounds: Bounds) -> _PlainRecords:
        """Return the valid records of the usual kind."""
        memory = np.frombuffer(data, np.uint8)
        inside = (bounds.starts >= 0) & (bounds.sizes >= RECORD_BYTES_MIN)
        inside &= bounds.starts + bounds.sizes <= len(memory)
        rows = np.flatnonzero(inside) if self._is_v1_topic else np.zeros(0, np.intp)
        if not len(rows):
            return _PlainRecords(rows, np.zeros(0, _HEAD), *(np.zeros(0, np.int64) for _ in range(3)))
        heads = windows(memory, _HEAD_BYTES, bounds.starts[rows]).view(_HEAD)[:, 0]
        topic_width = len(self._topic_field) + 2
        lengths = heads["body_length"].astype(np.int64)
        right = (heads["magic"] == RECORD_MAGIC_V1) & (heads["sys_flag"] & _UNUSUAL == 0)
        right &= (heads["size"] == bounds.sizes[rows]) & (heads["queue_id"] == self._queue_id)
        right &= (lengths >= 0) & (_HEAD_BYTES + lengths + topic_width <= bounds.sizes[rows])
        for name, known in (("queue_offset", bounds.queue_offsets), ("physical_offset", bounds.physical_offsets)):
            if known is not None:
                right &= heads[name] == known[rows]
        rows, heads, lengths = rows[right], heads[right], lengths[right]
        body_starts = bounds.starts[rows] + _HEAD_BYTES
        tails = windows(memory, topic_width, body_starts + lengths)
        property_starts = body_starts + lengths + topic_width
        property_lengths = tails[:, -2].astype(np.int64) << 8 | tails[:, -1]
        property_ends = property_starts + property_lengths
        right = (tails[:, :-2] == self._topic_field).all(axis=1)
        right &= property_ends == bounds.starts[rows] + bounds.sizes[rows]
        found = _PlainRecords(rows, heads, body_starts, property_starts, property_ends).take(right)
        return self._check_crcs(data, memory, found)

    def _check_crcs(self, data: Bytes, memory: Octets, found: _PlainRecords) -> _PlainRecords:
        """Return the records whose checksums are right. Their property ends exclude the record's own checksum."""
        if not len(found.rows):
            return found
        starts, ends = found.body_starts - _HEAD_BYTES, found.property_ends
        # A record has more than 20 bytes, so this reads no bytes of other records, even if the property is missing.
        tails = windows(memory, CRC_PROPERTY_BYTES, ends - CRC_PROPERTY_BYTES)
        digits = tails[:, _CRC_DIGITS].astype(np.int64) - ord("0")
        has_crc = ends - found.property_starts >= CRC_PROPERTY_BYTES
        has_crc &= (tails[:, : len(_CRC_PREFIX)] == _CRC_PREFIX).all(axis=1) & (tails[:, -1] == 0x02)
        body_ends = found.body_starts + found.heads["body_length"]
        from_, to = (
            np.where(has_crc, starts, found.body_starts),
            np.where(has_crc, ends - CRC_PROPERTY_BYTES, body_ends),
        )
        with memoryview(data) as view:
            crcs = [crc32(view[start:end]) for start, end in zip(from_.tolist(), to.tolist(), strict=True)]
        masked = np.array(crcs, np.int64) & CRC_MASK
        is_right = (masked == digits @ _CRC_WEIGHTS) & ((digits >= 0) & (digits <= 9)).all(axis=1)
        is_sound = np.where(has_crc, is_right, masked == found.heads["body_crc"])
        if self._manifest is not None and not has_crc.all():
            is_sound &= has_crc | ~_demands_record_crc(self._manifest, found.heads["physical_offset"])
        ends = np.where(has_crc, ends - CRC_PROPERTY_BYTES, ends)
        return found._replace(property_ends=ends).take(is_sound)

    def _plain_batch(self, data: Bytes, plain: _PlainRecords) -> pa.RecordBatch | None:
        """Return the batch of valid records; None if their properties must be parsed one by one."""
        heads, count = plain.heads, len(plain.rows)
        try:
            texts = slice_bytes(data, plain.property_starts, plain.property_ends - plain.property_starts).cast(
                pa.string()
            )
            properties = split_properties(texts)
        except pa.ArrowInvalid:
            return None  # The properties are not UTF-8.
        ids = stored_ids(heads)
        columns = {
            "message_id": pc.coalesce(properties.unique_key, ids),
            "stored_id": ids,
            "queue_offset": pa.array(heads["queue_offset"].astype(np.int64)),
            "body": slice_bytes(data, plain.body_starts, heads["body_length"].astype(np.int64)),
            "tag": properties.tag,
            "keys": properties.keys,
            "properties": pa.MapArray.from_arrays(
                pa.array(properties.user_offsets, pa.int32()), properties.user_names, properties.user_values
            ),
            "born_at": micros(heads["born_at"]),
            "stored_at": micros(heads["stored_at"]),
            "born_host": hosts(heads["born_host"]),
            "reconsume_times": pa.array(heads["reconsume_times"].astype(np.int32)),
            "size": pa.array(heads["size"].astype(np.int32)),
        }
        if self._says_filters:
            ends = zip(plain.property_starts.tolist(), plain.property_ends.tolist(), strict=True)
            with memoryview(data) as view:
                columns[ACCEPTED_BY] = [self._filters.accepting(bytes(view[start:end])) for start, end in ends]
        return self._batch(count, columns)

    def _decode_others(
        self, data: Bytes, bounds: Bounds, rows: npt.NDArray[np.intp], wanted: RowFilter
    ) -> tuple[npt.NDArray[np.intp], pa.RecordBatch | None, list[Damage], int]:
        """Decode records that arrays could not decode, until their bodies reach INFLATED_BYTES_MAX.

        Returns:
            The indexes of the valid and wanted records, their batch, the damaged records, and the index behind the last
            record that this covers.
        """
        kept, good, bodies, damages = [], [], [], []
        inflated_bytes, end = 0, len(bounds.starts)
        for row in rows.tolist():
            if inflated_bytes >= INFLATED_BYTES_MAX:
                end = row
                break
            found = self._examine(data, bounds, row)
            if isinstance(found, Damage):
                damages.append(found)
                continue
            message = found.message
            if not wanted.takes(message.queue_offset, message.stored_at_ms):
                continue
            try:
                bodies.append(message.inflated_body())
            except RecordError as error:
                damages.append(Damage(message.queue_offset, message.physical_offset, error.reason))
            else:
                kept.append(row)
                good.append(found)
                inflated_bytes += len(bodies[-1])
        batch = self._message_batch(good, bodies) if kept else None
        return np.array(kept, np.intp), batch, damages, end

    def _examine(self, data: Bytes, bounds: Bounds, row: int) -> _DecodedRecord | Damage:
        """Return a record if it is valid, else its damage."""
        queue_offset, physical_offset = (
            None if known is None else int(known[row]) for known in (bounds.queue_offsets, bounds.physical_offsets)
        )
        start, size = int(bounds.starts[row]), int(bounds.sizes[row])
        try:
            head = parse_head(data, start, limit=start + size)
            message = decode_head(data, start, head, check_head(data, start, head))
        except RecordError as error:
            return Damage(queue_offset, physical_offset, error.reason)
        known = (
            size,
            message.queue_offset if queue_offset is None else queue_offset,
            message.physical_offset if physical_offset is None else physical_offset,
        )
        says = (message.size_bytes, message.queue_offset, message.physical_offset)
        if known != says or (message.topic, message.queue_id) != (self._topic, self._queue_id):
            reason = (
                f"the record is one of queue {message.queue_id} of {message.topic}, (size, offsets) {says}, not {known}"
            )
        elif not message.crc.is_good:
            reason = f"checksum: {message.crc.value}"
        elif message.crc is CrcState.BODY_ONLY and self._demands_crc(message.physical_offset):
            reason = "the checksum over the whole record is missing"
        else:
            # The id uses the host's bytes as they are stored: the port may be outside of the valid range.
            stored_id = encode_packed_stored_id(head.store_host, head.physical_offset)
            return _DecodedRecord(message, stored_id, find_properties(data, start, start + size) or b"")
        return Damage(known[1], known[2], reason)

    def _demands_crc(self, physical_offset: int) -> bool:
        return self._manifest is not None and self._manifest.demands_record_crc(physical_offset)

    def _message_batch(self, good: Sequence[_DecodedRecord], bodies: Sequence[bytes]) -> pa.RecordBatch:
        messages = [found.message for found in good]
        columns = {
            "message_id": [found.message.properties.get(PropertyName.UNIQ_KEY) or found.stored_id for found in good],
            "stored_id": [found.stored_id for found in good],
            "queue_offset": [message.queue_offset for message in messages],
            "body": bodies,
            "tag": [message.tag for message in messages],
            "keys": [message.keys for message in messages],
            "properties": [
                [item for item in message.properties.items() if not is_reserved_property(item[0])]
                for message in messages
            ],
            "born_at": micros(np.array([message.born_at_ms for message in messages], np.int64)),
            "stored_at": micros(np.array([message.stored_at_ms for message in messages], np.int64)),
            "born_host": [str(message.born_host) for message in messages],
            "reconsume_times": [message.reconsume_times for message in messages],
            "size": [message.size_bytes for message in messages],
        }
        if self._says_filters:
            columns[ACCEPTED_BY] = [self._filters.accepting(found.properties) for found in good]
        return self._batch(len(messages), columns)

    def _batch(self, count: int, columns: dict[str, Any]) -> pa.RecordBatch:
        same = {"topic": self._topic, "broker": self._broker, "queue_id": self._queue_id}
        arrays = []
        for field in self._schema:
            if field.name in same:
                arrays.append(pa.repeat(pa.scalar(same[field.name], field.type), count))
                continue
            column = columns[field.name]
            if not isinstance(column, pa.Array):
                column = pa.array(column, field.type)
            elif column.type != field.type:
                column = column.cast(field.type)
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _demands_record_crc(manifest: StoreManifest, physical_offsets: Int64s) -> npt.NDArray[np.bool_]:
    """Return the results of `manifest.demands_record_crc` for many offsets."""
    start, end = manifest.record_checksum_from, manifest.clean_stop_offset
    if start is None:
        return np.zeros(len(physical_offsets), bool)
    demanded: npt.NDArray[np.bool_] = physical_offsets >= start
    return demanded if end is None else demanded & (physical_offsets < end)
