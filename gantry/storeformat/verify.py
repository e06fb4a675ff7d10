"""Verification of a whole store: every record, unit and index entry, the checkpoint and the configuration.

Nothing is changed. After a crash, what the next start mends by itself is a note and not a problem: a torn tail, units
and index entries that were not written yet.
"""

from gantry.storeformat import layout
from gantry.storeformat.configjson import read_config
from gantry.storeformat.errors import BrokenFileError
from gantry.storeformat.findings import Report
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verifyindex import verify_index
from gantry.storeformat.verifylog import LogFacts, OnProgress, verify_log, verify_tail
from gantry.storeformat.verifyqueue import verify_queues


def verify(reader: StoreReader, *, on_progress: OnProgress | None = None) -> Report:
    """Check a store.

    Args:
        reader: The open store.
        on_progress: Told how much of the CommitLog is read.

    Returns:
        What was found; `result` says what it comes to.
    """
    report = Report(reader.root, needs_recovery=reader.has_abort)
    facts = verify_log(reader, report, on_progress)
    units = verify_queues(reader, facts, report)
    verify_tail(reader, facts, report, units_end=units.end, units_at_end=units.is_at_log_end)
    verify_index(reader, facts, report)
    _verify_checkpoint(reader, facts, report)
    _verify_config(reader, report)
    _verify_mark(reader, report)
    if reader.has_abort:
        text = "needs recovery: the broker that ran on this store did not stop in order; the next start recovers it"
        report.note("abort", reader.path(layout.ABORT_FILE), text)
    return report


def _verify_checkpoint(reader: StoreReader, facts: LogFacts, report: Report) -> None:
    kind, path = "checkpoint", reader.path(layout.CHECKPOINT_FILE)
    checkpoint = reader.checkpoint()
    if checkpoint is None:
        if facts.end > facts.start:
            report.note(kind, path, "there is no checkpoint; after a crash the whole log would be read")
        return
    size = reader.files.size_bytes(path)
    if size != layout.CHECKPOINT_BYTES:
        report.problem(kind, path, f"the file has {size} bytes instead of {layout.CHECKPOINT_BYTES}", size_bytes=size)
    for name, value in zip(checkpoint._fields, checkpoint, strict=True):
        if value < 0:
            report.problem(kind, path, f"{name} is {value}", size_bytes=8)
    if not reader.has_abort and checkpoint.physic_msg_timestamp > facts.last_stored_at_ms:
        text = (
            f"physic_msg_timestamp is {checkpoint.physic_msg_timestamp}, later than the last record's store time "
            f"{facts.last_stored_at_ms}: records behind it were cut, or are damaged"
        )
        report.note(kind, path, text)


def _verify_config(reader: StoreReader, report: Report) -> None:
    kind, root = "config", reader.path(layout.CONFIG_DIR)
    for name in reader.files.list_dir(root):
        path = f"{root}/{name}"
        if not name.endswith(".json") or path == reader.path(layout.MARK_FILE):
            continue
        try:
            found = read_config(reader.files, path)
        except BrokenFileError as error:
            report.problem(kind, error.path, error.reason, size_bytes=reader.files.size_bytes(error.path))
            continue
        assert found is not None, "it was listed just now"
        if found.problem is not None:
            report.note(kind, path, f"is broken ({found.problem}); a broker reads {found.path} instead")
        if not isinstance(found.content, dict):
            text = f"holds {type(found.content).__name__} instead of an object"
            report.problem(kind, found.path, text, size_bytes=reader.files.size_bytes(found.path))


def _verify_mark(reader: StoreReader, report: Report) -> None:
    if reader.mark_problem is not None:
        size = reader.files.size_bytes(reader.mark_problem.path)
        report.problem("mark", reader.mark_problem.path, reader.mark_problem.reason, size_bytes=size)
    if reader.mark is not None:
        report.record_checksum_from = reader.mark.record_checksum_from
