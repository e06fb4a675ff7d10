"""`python -m services.broker.store repair DIR`: open a store as a broker would, mend it, say what was mended, close.

`gantry store repair` starts this. Nothing is served. Unlike an ordinary start it goes through the whole log and checks
everything derived from it.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem, OsFileSystem
from gantry.runtime.telemetry import configure_logging
from gantry.runtime.workers import InlineWorker
from gantry.storeformat import layout
from gantry.storeformat.errors import StoreFileError
from gantry.storeformat.scan import StoreReader, usual_size
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import RecoveryReport
from services.broker.store.settings import StoreSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.broker.store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    repair = commands.add_parser("repair", help="mend a store that no broker runs on")
    repair.add_argument("dir", help="the store's folder")
    repair.add_argument("--json", action="store_true", help="print one JSON object")
    repair.add_argument(
        "--index-slots", type=int, help="hash slots of an index file (default: a quarter of its entries)"
    )
    options = parser.parse_args(arguments)
    configure_logging(service="store-repair")
    files, root = OsFileSystem(), str(Path(options.dir).resolve())
    try:
        settings = _settings_of(files, root, options.index_slots)
        store = MessageStore(
            settings,
            files=files,
            clock=SystemClock(),
            process_id=os.getpid(),
            flush_worker=InlineWorker(),
            chores_worker=InlineWorker(),
        )
        report = store.start(thorough=True)
        is_clean = store.stop()
    except (StartupError, StoreFileError) as error:
        sys.stderr.write(f"repair: {error}\n")
        return 1
    _print(root, report, as_json=options.json)
    return 0 if is_clean else 1


def _settings_of(files: FileSystem, root: str, index_slots: int | None) -> StoreSettings:
    """Return settings that fit the files that are there; RocketMQ's defaults for those that are not.

    Raises:
        StoreFileError: There is no store, or a broker runs on it.
    """
    with StoreReader(files, root) as reader:
        log_sizes = [file.size_bytes for file in reader.log_files]
        queue_sizes = [file.size_bytes for queue in reader.queues() for file in queue.files]
        index_sizes = [files.size_bytes(path) for path in reader.index_paths()]
    settings = StoreSettings(root_dir=root)
    if log_sizes:
        settings = replace(settings, mapped_file_size_commit_log=usual_size(log_sizes))
    if queue_sizes:
        settings = replace(settings, mapped_file_size_consume_queue=usual_size(queue_sizes))
    if index_sizes:
        size = usual_size(index_sizes) - layout.INDEX_HEADER_BYTES
        entries_share = layout.ENTRIES_PER_SLOT * layout.INDEX_ENTRY_BYTES
        slots = index_slots or size // (layout.INDEX_SLOT_BYTES + entries_share)
        entries = (size - slots * layout.INDEX_SLOT_BYTES) // layout.INDEX_ENTRY_BYTES
        settings = replace(settings, max_hash_slot_num=slots, max_index_num=entries)
    return settings


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _print(root: str, report: RecoveryReport, *, as_json: bool) -> None:
    if as_json:
        _say(json.dumps({"dir": root, **report._asdict(), "lost_bytes": report.lost_bytes}))
        return
    _say(f"{root}: {report.records} records between {report.scanned_from} and {report.log_end_offset}")
    for start, end in report.lost:
        _say(f"  damaged: {end - start} bytes at {start} hold no record that proves itself; kept as they are")
    counts = {
        "bytes behind the last record wiped": report.torn_bytes,
        "units of consume queues built again": report.units_mended,
        "queue offsets without a message": report.units_skipped,
        "units without a record cut": report.units_cut,
        "index entries built again": report.index_entries_mended,
        "files without a record removed": report.files_removed,
    }
    for what, count in counts.items():
        if count:
            _say(f"  {what}: {count}")
    for path in report.foreign_index_files:
        _say(f"  left alone, made with other settings: {path}")
    if not report.lost and not any(counts.values()):
        _say("  nothing to mend")


if __name__ == "__main__":
    sys.exit(main())
