"""`python -m services.broker.store repair DIR`: open a store as a broker does, repair it, report the repairs, close it.

`gantry store repair` starts this program, which serves no requests. Unlike an ordinary start, it reads the whole log
and checks everything derived from it.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gantry.runtime.clock import SystemClock
from gantry.runtime.descriptors import PROCESS_DESCRIPTORS, share_descriptors
from gantry.runtime.environment import raise_descriptor_limit
from gantry.runtime.errors import StartupError, describe_os_error
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.telemetry import configure_logging
from gantry.runtime.workers import InlineWorker
from gantry.storeformat import layout
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.errors import StoreFileError
from gantry.storeformat.scan import StoreReader, usual_size
from services.broker.store.log.commitlog import log_descriptors
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import RecoveryReport
from services.broker.store.settings import StoreSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.broker.store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    repair = commands.add_parser("repair", help="repair a store that no broker runs on")
    repair.add_argument("dir", help="the store's folder")
    repair.add_argument("--json", action="store_true", help="print one JSON object")
    repair.add_argument(
        "--index-slots", type=int, help="hash slots of an index file (default: a quarter of its entries)"
    )
    options = parser.parse_args(arguments)
    configure_logging(service="store-repair")
    files, root = OsFileSystem(), str(Path(options.dir).resolve())
    try:
        settings, broken_manifest = _inspect(files, root, options.index_slots)
        process = PROCESS_DESCRIPTORS + log_descriptors(settings.mapped_file_size_commit_log)
        shares = share_descriptors(raise_descriptor_limit(), process=process, connections_max=0, has_files=True)
        store = MessageStore(
            settings,
            files=files,
            clock=SystemClock(),
            process_id=os.getpid(),
            open_files_max=shares.files,
            flush_worker=InlineWorker(),
            making_worker=InlineWorker(),
            chores_worker=InlineWorker(),
        )
        report = store.start(thorough=True)
        is_clean = store.stop()
    except (StartupError, StoreFileError) as error:
        sys.stderr.write(f"repair: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"repair: the store {root} can't be read: {describe_os_error(error)}\n")
        return 1
    lost_reason = store.lost_reason()
    if lost_reason is not None:
        sys.stderr.write(f"repair: {lost_reason}; the repair was cut off\n")
        return 1
    _print(root, report, broken_manifest, as_json=options.json)
    return 0 if is_clean else 1


def _inspect(files: FileSystem, root: str, index_slots: int | None) -> tuple[StoreSettings, str | None]:
    """Return settings that fit the existing files (else RocketMQ's defaults), and the manifest's problem, or None.

    Raises:
        StoreFileError: There is no store, or a broker runs on it.
    """
    with StoreReader(files, root) as reader:
        queue_paths = [file.path for queue in reader.queues() for file in queue.files]
        broken_manifest = None if reader.manifest_problem is None else str(reader.manifest_problem)
        log_sizes = _sizes(files, [file.path for file in reader.log_files])
        queue_sizes, index_sizes = _sizes(files, queue_paths), _sizes(files, reader.index_paths())
    settings = StoreSettings(store_path_root_dir=root)
    if log_sizes:
        settings = replace(settings, mapped_file_size_commit_log=usual_size(log_sizes))
    if queue_sizes:
        # Bytes that somebody appended to the only file are not part of a unit.
        whole = [max(size - size % layout.UNIT_SIZE_BYTES, layout.UNIT_SIZE_BYTES) for size in queue_sizes]
        settings = replace(settings, mapped_file_size_consume_queue=usual_size(whole))
    if index_sizes:
        size = usual_size(index_sizes) - layout.INDEX_HEADER_BYTES
        entries_share = layout.ENTRIES_PER_SLOT * layout.INDEX_ENTRY_BYTES
        slots = index_slots or size // (layout.INDEX_SLOT_BYTES + entries_share)
        entries = (size - slots * layout.INDEX_SLOT_BYTES) // layout.INDEX_ENTRY_BYTES
        settings = replace(settings, max_hash_slot_num=slots, max_index_num=entries)
    return settings, broken_manifest


def _sizes(files: FileSystem, paths: Sequence[str]) -> list[int]:
    """Return the sizes of files with data; a crash may have left blank files of any size."""
    return [files.size_bytes(path) for path in paths if not is_blank_file(files, path)]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _print(root: str, report: RecoveryReport, broken_manifest: str | None, *, as_json: bool) -> None:
    if as_json:
        content = {"dir": root, **report._asdict(), "lost_bytes": report.lost_bytes, "broken_mark": broken_manifest}
        _say(json.dumps(content))
        return
    _say(f"{root}: {report.records} records between {report.scanned_from} and {report.log_end_offset}")
    if broken_manifest is not None:
        _say(f"  the manifest was broken, and a new one is written: {broken_manifest}")
    for start, end in report.lost:
        _say(f"  damaged: {end - start} bytes at {start} hold no valid record; kept as they are")
    counts = {
        "bytes wiped behind the last record": report.torn_bytes,
        "units of consume queues built again": report.units_mended,
        "queue offsets without a message": report.units_skipped,
        "units without a record cut": report.units_cut,
        "index entries built again": report.index_entries_mended,
        "files without a record removed": report.files_removed,
    }
    for what, count in counts.items():
        if count:
            _say(f"  {what}: {count}")
    if report.flush_failed:
        _say(f"  the last broker could not flush the store: {report.flush_failed}")
    for start, end in report.missing:
        _say(f"  missing: files of the log between {start} and {end}")
    for start, end in report.unreadable:
        _say(f"  unreadable: {end - start} bytes at {start}; copy the disk, it is failing")
    if report.acknowledged_lost is not None:
        start, end = report.acknowledged_lost
        _say(f"  lost: {end - start} bytes at {start} were acknowledged, and the disk does not have them")
    if (
        not broken_manifest
        and not report.lost
        and not report.missing
        and not report.flush_failed
        and not any(counts.values())
    ):
        _say("  nothing to repair")


if __name__ == "__main__":
    sys.exit(main())
