"""Verifies a whole store: every record, unit and index entry, the checkpoint and the configuration.

Verification changes nothing. After a crash, the defects that the next start repairs by itself are notes, not problems:
a torn tail, and units and index entries that were not written yet.
"""

from functools import partial

from gantry.storeformat import layout
from gantry.storeformat.configjson import BACKUP_SUFFIX, BROKEN_SUFFIX, UnreadableConfigError, read_config
from gantry.storeformat.configtables import parse_table
from gantry.storeformat.findings import Report
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verifyindex import verify_index
from gantry.storeformat.verifylog import LogFacts, OnProgress, verify_log, verify_tail
from gantry.storeformat.verifyqueue import verify_queues


def verify(reader: StoreReader, *, on_progress: OnProgress | None = None) -> Report:
    """Verify a store.

    Args:
        reader: The open store.
        on_progress: Called with the number of CommitLog bytes that are read so far and the total.

    Returns:
        The findings; `result` is the overall result.
    """
    report = Report(reader.root, needs_recovery=reader.has_abort)

    def report_unreadable(path: str, start: int, end: int) -> None:
        kind = path[len(reader.root) + 1 :].partition("/")[0]
        report.problem(kind, path, f"the disk can't read bytes {start} to {end} of the file", size_bytes=end - start)

    reader.guard(report_unreadable)
    facts = verify_log(reader, report, on_progress)
    units = verify_queues(reader, facts, report)
    verify_tail(reader, facts, report, units_end=units.end, units_at_end=units.is_at_log_end)
    verify_index(reader, facts, report)
    _verify_checkpoint(reader, facts, report)
    _verify_config(reader, report)
    _verify_manifest(reader, report)
    if reader.has_abort:
        text = "needs recovery: the broker that ran on this store did not stop in order; the next start recovers it"
        report.note("abort", reader.path(layout.ABORT_FILE), text)
    failed = reader.failed_flush()
    if failed is not None:
        reached = "how far is not known, since its note is damaged"
        if failed.flushed_offset is not None:
            reached = f"the disk has the CommitLog up to {failed.flushed_offset}, {failed.acknowledged_offset} was acknowledged"
        text = (
            f"the last broker could not flush the store: {failed.reason}; {reached}. The files that verify reads may only be "
            "in memory; the next start reads the disk"
        )
        report.note("abort", reader.path(layout.FLUSH_NOTE_FILE), text, offset=failed.flushed_offset)
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
    listed = reader.files.list_dir(root)
    for name in dict.fromkeys(name.removesuffix(BACKUP_SUFFIX) for name in listed):
        path = f"{root}/{name}"
        if name.endswith(f".json{BROKEN_SUFFIX}"):
            good = path.removesuffix(BROKEN_SUFFIX)
            text = (
                f"could not be read by a broker, which used the backup of {good} and kept this one for you to look at"
            )
            if good == reader.path(layout.MANIFEST_FILE):
                text = "could not be understood; `gantry store repair` wrote a new manifest and kept this one for you"
            report.note(kind, path, text)
        if not name.endswith(".json") or path == reader.path(layout.MANIFEST_FILE):
            continue
        try:
            found = read_config(reader.files, path, partial(parse_table, name))
        except UnreadableConfigError as error:
            for unreadable, reason in error.reasons.items():
                report.problem(kind, unreadable, reason, size_bytes=reader.files.size_bytes(unreadable))
            continue
        assert found is not None, "it was listed just now"
        if found.problem is not None:
            report.note(kind, path, f"is not used ({found.problem}); a broker reads {found.path} instead")


def _verify_manifest(reader: StoreReader, report: Report) -> None:
    if reader.manifest_problem is not None:
        size = reader.files.size_bytes(reader.manifest_problem.path)
        reason = reader.manifest_problem.reason
        text = f"{reason}; no broker starts before `gantry store repair` has written a new manifest"
        report.problem("mark", reader.manifest_problem.path, text, size_bytes=size)
    if reader.manifest is not None:
        report.record_checksum_from = reader.manifest.record_checksum_from
