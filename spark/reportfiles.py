"""Where a run's files lie: `OUTPUT/JOB/RUN.html`, `OUTPUT/JOB/day=YYYY-MM-DD/run=RUN/`, `LOGS/JOB/RUN.log`.

All of them carry the run's id, so that they are found again whatever became of the run. OUTPUT is a folder of this machine,
or the URI of one in a file system that Spark understands (`hdfs://…`, `s3a://…`, `file:…`), which outputs.py sees to; LOGS is
OUTPUT where that is a folder. Light: the scheduler imports this, and must not wait for pyarrow.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from gantry.runtime.files import write_atomically
from gantry.runtime.osfilesystem import OsFileSystem

COPIED_AT_ONCE_BYTES: Final = 1024 * 1024
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def is_uri(output: str) -> bool:
    """Say whether an output is a URI ("s3a://…", "file:/…"); if not, it is a folder of this machine."""
    return _SCHEME.match(output) is not None


def parquet_name(run_id: UUID, day: datetime) -> str:
    """Return the path of a run's Parquet files in its job's folder; Spark reads `day` and `run` from the path."""
    return f"day={day.astimezone(UTC):%Y-%m-%d}/run={run_id}"


def log_file(output: str, job: str, run_id: UUID) -> Path:
    """Return where a run's process writes what it says."""
    return Path(output) / job / f"{run_id}.log"


def page_file(output: str, job: str, run_id: UUID) -> Path:
    """Return where a run's page lies."""
    return Path(output) / job / f"{run_id}.html"


def parquet_folder(output: str, job: str, run_id: UUID, day: datetime) -> Path:
    """Return the folder of a run's Parquet files."""
    return Path(output) / job / parquet_name(run_id, day)


def put_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Spark ignores names that begin with a dot. The source may be on another disk, so it can't be renamed.
    temporary = target.with_name(f".{target.name}.tmp")
    with source.open("rb") as read, temporary.open("wb") as written:
        while piece := read.read(COPIED_AT_ONCE_BYTES):
            written.write(piece)
    temporary.replace(target)


def write_page(path: Path, html: str) -> None:
    """Write a page, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(OsFileSystem(), str(path), html.encode())


def remove_run(output: str, job: str, run_id: UUID, *, with_log: bool) -> None:
    """Remove what a run has written; what is not there, or can't be removed, is passed over."""
    folder = Path(output) / job
    files = [page_file(output, job, run_id), *([log_file(output, job, run_id)] if with_log else [])]
    for file in files:
        with suppress(OSError):
            file.unlink()
    for part in folder.glob(f"day=*/run={run_id}"):
        for file in part.iterdir():
            with suppress(OSError):
                file.unlink()
        for empty in (part, part.parent):
            with suppress(OSError):
                empty.rmdir()
