"""`gantry store`: check and dump the store of a stopped broker, Gantry's or Apache RocketMQ's.

Exit codes: 0 success; 1 `verify` found damage; 2 the folder can't be read: it is missing, not a store, in use or newer
than this version.
"""

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from gantry.cli.formatting import cell, print_facts, print_json
from gantry.cli.outcome import EXIT_FAILED, EXIT_USAGE, discard_output, fail, warn
from gantry.model import sysflag
from gantry.model.errors import CorruptRecordError
from gantry.model.message import StoredMessage
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.commitlog import LogScan
from gantry.storeformat.errors import StoreFileError
from gantry.storeformat.findings import Finding, Report, Result
from gantry.storeformat.resync import LogRecord
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify as verify_store

app = typer.Typer(
    name="store",
    help="Check, dump and repair the store of a stopped broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
IndexSlots = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Number of hash slots in an index file; default: a quarter of its entries."),
]


@app.command()
def verify(folder: Folder, *, as_json: AsJson = False, index_slots: IndexSlots = None) -> None:
    """Check every record, unit, index entry and configuration file; change nothing.

    The exit code is 0 if nothing is damaged, 1 otherwise. The store of a broker that crashed is not damaged, but the
    report says that it needs recovery.
    """
    with _opened(folder, index_slots=index_slots) as reader, _progress() as on_progress:
        report = verify_store(reader, on_progress=on_progress)
    if as_json:
        print_json(report_object(report))
    else:
        _print_report(report)
    raise typer.Exit(EXIT_FAILED if report.result is Result.DAMAGED else 0)


@app.command()
def dump(
    folder: Folder,
    *,
    as_json: AsJson = False,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Print only records of this topic.")] = None,
    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="Begin at this physical offset.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Print at most N records.")] = None,
) -> None:
    """Print the records of the CommitLog, one on each line. Damaged regions are reported on stderr."""
    with _opened(folder) as reader:
        scan = reader.scan(start)
        try:
            _dump(scan, as_json=as_json, topic=topic, limit=limit)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(0) from None
    for damage in scan.damages:
        if damage.start == start:
            continue  # The offset of --from is in the middle of a record.
        warn(f"{damage.size_bytes} bytes at {damage.start} in {damage.path}: {damage.reason}")


@app.command()
def repair(folder: Folder) -> None:
    """Recover the store from its whole CommitLog, and rebuild the files that are derived from the log.

    A store manifest (config/gantry.json) that can't be decoded is replaced by a new one. Topics and offsets
    (config/*.json) do not change.
    """
    with _opened(folder):
        pass  # Fails with one line if the store can't be repaired. The program below takes the lock itself.
    if find_spec("services") is None:
        fail("the services are not installed: pip install 'gantry-mq[server]'")
    command = [sys.executable, "-P", "-m", "services.broker.store", "repair", folder]
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own module, no shell.


def record_object(record: LogRecord) -> dict[str, Any]:
    """Return a record as `dump --json` prints it.

    As for clients, the body is decompressed and the compressed bit of the sysFlag is cleared. A body that can't be
    decompressed is null.
    """
    message = record.message()
    body, sys_flag = _inflated(message)
    return {
        "physical_offset": record.offset,
        "size": message.size_bytes,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_id": message.stored_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "sys_flag": sys_flag,
        "born_at": iso_time(message.born_at_ms),
        "stored_at": iso_time(message.stored_at_ms),
        "body_base64": None if body is None else base64.b64encode(body).decode(),
        "crc_ok": record.crc.is_good,
    }


def report_object(report: Report) -> dict[str, Any]:
    """Return a report as `verify --json` prints it."""
    return {
        "store": report.root,
        "result": report.result.value,
        "needs_recovery": report.needs_recovery,
        "problems": report.problems,
        "min_offset": report.min_offset,
        "max_offset": report.max_offset,
        "records": report.records,
        "damaged_bytes": report.damaged_bytes,
        "record_checksum_from": report.record_checksum_from,
        "queues": report.queues,
        "units": report.units,
        "index_files": report.index_files,
        "index_entries": report.index_entries,
        "findings": [
            {
                "severity": finding.severity.value,
                "kind": finding.kind,
                "path": finding.path,
                "offset": finding.offset,
                "bytes": finding.size_bytes,
                "text": finding.text,
            }
            for finding in report.findings
        ],
        "findings_left_out": report.left_out,
    }


def iso_time(at_ms: int) -> str | None:
    """Return a time in ISO 8601 and UTC, or None if the number in the record is out of range."""
    try:
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _inflated(message: StoredMessage) -> tuple[bytes | None, int]:
    try:
        return message.inflated_body(), message.sys_flag & ~sysflag.COMPRESSED
    except CorruptRecordError:
        return None, message.sys_flag


def _dump(scan: LogScan, *, as_json: bool, topic: str | None, limit: int | None) -> None:
    wanted = None if topic is None else topic.encode()
    printed = 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # Messages hold any text, independent of the locale.
    write = sys.stdout.write
    if not as_json:
        write(f"{'OFFSET':>14}  {'SIZE':>7}  STORED AT                 CRC  QUEUE AND OFFSET  MESSAGE ID  TAG\n")
    if limit == 0:
        return
    for record in scan:
        if wanted is not None and record.head.topic != wanted:
            continue
        if as_json:
            write(json.dumps(record_object(record), ensure_ascii=False) + "\n")
        else:
            write(_line(record) + "\n")
        printed += 1
        if printed == limit:
            return


def _line(record: LogRecord) -> str:
    message = record.message()
    crc = "ok " if record.crc.is_good else "BAD"
    place = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    stored_at = iso_time(message.stored_at_ms) or "-"
    rest = cell(f"{place}  {message.message_id}  {message.tag or '-'}")
    return f"{record.offset:>14}  {message.size_bytes:>7}  {stored_at:<24}  {crc}  {rest}"


def _print_report(report: Report) -> None:
    facts = {
        "store": report.root,
        "result": report.result.value,
        "CommitLog": f"{report.records} records, {report.min_offset} to {report.max_offset}",
        "damaged": f"{report.damaged_bytes} bytes",
        "ConsumeQueues": f"{report.queues} with {report.units} units",
        "index files": f"{report.index_files} with {report.index_entries} entries",
    }
    if report.record_checksum_from is not None:
        facts["checksummed"] = f"every record from {report.record_checksum_from} on"
    print_facts(facts)
    for finding in report.findings:
        print(_finding_line(finding))
    for kind, count in report.left_out.items():
        print(f"{kind}: {count} more findings are not shown")


def _finding_line(finding: Finding) -> str:
    where = "" if finding.offset is None else f" at {finding.offset}"
    size = "" if finding.size_bytes is None else f", {finding.size_bytes} bytes"
    return cell(f"{finding.severity.value}: {finding.kind}{where}{size}: {finding.text} ({finding.path})")


@contextmanager
def _opened(folder: str, *, index_slots: int | None = None) -> Iterator[StoreReader]:
    """Open a store. If the store can't be read, end the command with one line and exit code 2."""
    try:
        with StoreReader(OsFileSystem(), folder, index_slots=index_slots) as reader:
            yield reader
    except StoreFileError as error:
        fail(str(error), exit_code=EXIT_USAGE)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror or error}", exit_code=EXIT_USAGE)


@contextmanager
def _progress() -> Iterator[Any]:
    """Show the progress on a terminal. Yields the function to call with the progress, or None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("reading the CommitLog"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
