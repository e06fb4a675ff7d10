"""Stores for tests, built from the format pages alone, so that the readers are not tested with writers that share bugs."""

from dataclasses import dataclass
from typing import Any

from gantry.model.address import Address, pack_host
from gantry.model.javahash import index_key_hash, tags_code
from gantry.model.message import encode_properties
from gantry.model.record import encode_blank, encode_record
from gantry.runtime.files import FileSystem
from gantry.storeformat import layout
from gantry.storeformat.manifest import StoreManifest

HOST = pack_host(Address("10.0.0.5", 10911))
STORED_AT_MS = 1_700_000_000_000


@dataclass
class Placed:
    """A record that was appended."""

    offset: int
    data: bytes
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class StoreBuilder:
    """Appends records, and writes them with their units and index entries as files.

    Tests may change the appended bytes before `save`: `log` is the whole CommitLog, `units` the queues' bytes.
    """

    def __init__(self, *, log_file_bytes: int = 1024, queue_file_bytes: int = 200, slots: int = 40) -> None:
        self.log_file_bytes = log_file_bytes
        self.queue_file_bytes = queue_file_bytes
        self.slots = slots
        self.log = bytearray()
        self.units: dict[tuple[str, int], bytearray] = {}
        self.index: list[tuple[int, int, int]] = []
        self.records: list[Placed] = []
        self.stored_at_ms = STORED_AT_MS
        self.manifest: StoreManifest | None = None
        self.abort = False
        self.first_file = 0

    def add(self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **changes: Any) -> Placed:
        """Append one record; start the next file if the record does not fit."""
        properties = changes.pop("properties", {"UNIQ_KEY": f"U{len(self.records)}", "TAGS": "A", "KEYS": "k1 k2"})
        units = self.units.setdefault((topic, queue_id), bytearray())
        queue_offset = len(units) // layout.UNIT_SIZE_BYTES
        self.stored_at_ms += changes.pop("after_ms", 1000)
        values: dict[str, Any] = {
            "queue_id": queue_id,
            "flag": 0,
            "queue_offset": queue_offset,
            "physical_offset": len(self.log),
            "sys_flag": 0,
            "born_at_ms": self.stored_at_ms - 5,
            "born_host": HOST,
            "stored_at_ms": self.stored_at_ms,
            "store_host": HOST,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            "body": body,
            "topic": topic.encode(),
            "properties": encode_properties(properties),
            "whole_record_crc": True,
            **changes,
        }
        data = encode_record(**values)
        left = self.log_file_bytes - len(self.log) % self.log_file_bytes
        if len(data) + 8 > left:
            self.log += encode_blank(left).ljust(left, b"\0")
            data = encode_record(**{**values, "physical_offset": len(self.log)})
        placed = Placed(len(self.log), data, topic, queue_id, queue_offset)
        self.records.append(placed)
        self.log += data
        units += layout.encode_unit(placed.offset, len(data), tags_code(properties.get("TAGS")))
        keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split()]
        self.index += [(index_key_hash(topic, key), placed.offset, self.stored_at_ms) for key in keys if key]
        return placed

    def flip(self, bit: int) -> None:
        """Change one bit of the log."""
        self.log[bit // 8] ^= 1 << bit % 8

    def save(self, files: FileSystem, root: str = "/store") -> None:
        """Write all files."""
        for name in (layout.COMMIT_LOG_DIR, layout.CONSUME_QUEUE_DIR, layout.INDEX_DIR, layout.CONFIG_DIR):
            files.make_dirs(f"{root}/{name}")
        self._write_files(files, f"{root}/{layout.COMMIT_LOG_DIR}", self.log, self.log_file_bytes)
        for (topic, queue_id), units in self.units.items():
            folder = f"{root}/{layout.CONSUME_QUEUE_DIR}/{topic}/{queue_id}"
            files.make_dirs(folder)
            self._write_files(files, folder, units, self.queue_file_bytes)
        if self.index:
            files.write(f"{root}/{layout.INDEX_DIR}/20231114221320000", self.index_file())
        checkpoint = layout.Checkpoint(self.stored_at_ms, self.stored_at_ms, 0)
        files.write(f"{root}/{layout.CHECKPOINT_FILE}", layout.encode_checkpoint(checkpoint))
        files.write(f"{root}/{layout.LOCK_FILE}", layout.LOCK_CONTENT)
        files.write(f"{root}/{layout.CONFIG_DIR}/topics.json", b'{"topicConfigTable":{}}')
        files.write(f"{root}/{layout.CONFIG_DIR}/consumerOffset.json", b'{"offsetTable":{"T@g":{0:8,1:7}}}')
        if self.manifest is not None:
            manifest = self.manifest
            if manifest.clean_stop_offset is None and not self.abort:
                manifest = manifest.stopped(self.records[-1].end if self.records else 0)
            manifest.dump(files, root)
        if self.abort:
            files.write(f"{root}/{layout.ABORT_FILE}", b"1")

    def index_file(self) -> bytes:
        """Return the index file of the appended records."""
        entries = self.slots * layout.ENTRIES_PER_SLOT
        assert len(self.index) < entries, "take more slots"
        data = bytearray(layout.index_file_bytes(self.slots, entries))
        begin_ms = self.index[0][2]
        newest: dict[int, int] = {}
        for number, (key_hash, offset, stored_at_ms) in enumerate(self.index, 1):
            slot = key_hash % self.slots
            entry = (key_hash, offset, (stored_at_ms - begin_ms) // 1000, newest.get(slot, 0))
            layout.INDEX_ENTRY.pack_into(data, layout.index_entry_position(self.slots, number), *entry)
            layout.INDEX_SLOT.pack_into(data, layout.index_slot_position(slot), number)
            newest[slot] = number
        first, last = self.index[0], self.index[-1]
        header = (first[2], last[2], first[1], last[1], len(newest), len(self.index) + 1)
        layout.INDEX_HEADER.pack_into(data, 0, *header)
        return bytes(data)

    def _write_files(self, files: FileSystem, folder: str, data: bytes | bytearray, size: int) -> None:
        start = self.first_file if folder.endswith(layout.COMMIT_LOG_DIR) else 0
        for at in range(start, max(len(data), 1), size):
            files.write(f"{folder}/{layout.file_name(at)}", bytes(data[at : at + size]).ljust(size, b"\0"))
