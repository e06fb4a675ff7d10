"""Verifies the index files: each entry's hash must be the hash of a key of the record that the entry points to.

A missing key is not an error: RocketMQ loses entries when it drops the newest file after a crash.
"""

from collections.abc import Iterator

from gantry.model.javahash import index_key_hash
from gantry.model.message import decode_properties, split_keys
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordHead
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.errors import BrokenFileError
from gantry.storeformat.findings import Report
from gantry.storeformat.indexfile import IndexReader
from gantry.storeformat.layout import INDEX_ENTRY_BYTES, IndexEntry
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verifylog import LogFacts
from gantry.storeformat.verifyqueue import head_at

KIND = "index"


def verify_index(reader: StoreReader, facts: LogFacts, report: Report) -> None:
    """Check all index files."""
    checkpoint = reader.checkpoint()
    safe_ms = checkpoint.index_msg_timestamp if checkpoint else 0
    for path in reader.index_paths():
        report.index_files += 1
        if reader.has_abort and is_blank_file(reader.files, path):
            report.note(KIND, path, "the broker crashed while it made the file; recovery removes it")
            continue
        try:
            index = reader.index_file(path)
        except BrokenFileError as error:
            report.problem(KIND, path, error.reason, size_bytes=reader.files.size_bytes(path))
            continue
        if reader.is_unreadable(path):
            continue  # Already reported; the unreadable range appears as zeros, so a comparison makes no sense.
        if reader.has_abort and index.header.end_timestamp > safe_ms:
            text = "the file was not full when the broker crashed; recovery builds it again"
            report.note(KIND, path, text)
            continue
        _verify_file(reader, facts, report, index)


def _verify_file(reader: StoreReader, facts: LogFacts, report: Report, index: IndexReader) -> None:
    if index.next_number > index.entries:
        text = f"the header counts {index.next_number} entries, the file holds {index.entries}"
        report.problem(KIND, index.path, text, size_bytes=index.entries * INDEX_ENTRY_BYTES)
        return
    newest: dict[int, int] = {}
    last_head: tuple[int, RecordHead | None] = (-1, None)
    for number in range(1, index.next_number):
        report.index_entries += 1
        entry = index.entry(number)
        slot = entry.key_hash % index.slots
        problem = _check_chain(entry, number, newest.get(slot, 0))
        newest[slot] = number
        if problem is None and facts.start <= entry.physical_offset < facts.end:
            if last_head[0] != entry.physical_offset:  # The entries of one record follow each other.
                last_head = (entry.physical_offset, head_at(reader, entry.physical_offset))
            problem = _check_key(entry, last_head[1], facts)
        elif problem is None and entry.physical_offset >= facts.end and not (facts.tail and facts.tail.is_older):
            problem = f"points to {entry.physical_offset}, behind the end of the log"
        if problem is not None:
            text = f"entry {number} {problem}"
            report.problem(KIND, index.path, text, offset=number, size_bytes=INDEX_ENTRY_BYTES)
    for slot, number in newest.items():
        if index.slot(slot) != number:
            text = f"slot {slot} begins its chain with entry {index.slot(slot)}, its newest entry is {number}"
            report.problem(KIND, index.path, text, offset=number, size_bytes=INDEX_ENTRY_BYTES)


def _check_chain(entry: IndexEntry, number: int, before: int) -> str | None:
    if entry.key_hash < 0:
        return f"has the negative hash {entry.key_hash}"
    if max(entry.previous, 0) == before:
        return None
    return f"is chained to entry {entry.previous}, the one before it in its slot is {before}"


def _check_key(entry: IndexEntry, head: RecordHead | None, facts: LogFacts) -> str | None:
    if facts.is_damaged(entry.physical_offset):
        return None  # Reported with the damage.
    if head is None:
        return f"points to {entry.physical_offset}, where no record starts"
    topic = head.topic.decode("utf-8", "replace")
    if any(index_key_hash(topic, key) == entry.key_hash for key in record_keys(head)):
        return None
    return f"has hash {entry.key_hash}, which no key of the record at {entry.physical_offset} has"


def record_keys(head: RecordHead) -> Iterator[str]:
    """Yield the keys under which a record is indexed: its unique key, then its KEYS."""
    properties = decode_properties(head.properties)
    unique = properties.get(PropertyName.UNIQ_KEY)
    if unique:
        yield unique
    yield from split_keys(properties.get(PropertyName.KEYS))
