"""The paths of a run's files: `OUTPUT/JOB/RUN.html`, `OUTPUT/JOB/day=YYYY-MM-DD/run=RUN/`, `LOGS/JOB/RUN.log`.

All paths contain the run's id, so the files of a failed run can be found, too. OUTPUT is a folder of this machine, or a
URI in a file system that Spark knows (`hdfs://…`, `s3a://…`, `file:…`), which outputs.py handles. If OUTPUT is a
folder, LOGS is the same folder by default. The scheduler imports this module, so it must not load pyarrow.
"""

import re
import tempfile
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
    """Return whether an output is a URI ("s3a://…", "file:/…"); otherwise it is a folder of this machine."""
    return _SCHEME.match(output) is not None


def parquet_name(run_id: UUID, day: datetime) -> str:
    """Return the path of a run's Parquet files in its job's folder; Spark reads `day` and `run` from the path."""
    return f"day={day.astimezone(UTC):%Y-%m-%d}/run={run_id}"


def log_file(output: str, job: str, run_id: UUID) -> Path:
    """Return the file for the output of a run's process."""
    return Path(output) / job / f"{run_id}.log"


def page_file(output: str, job: str, run_id: UUID) -> Path:
    """Return the file of a run's page."""
    return Path(output) / job / f"{run_id}.html"


def parquet_folder(output: str, job: str, run_id: UUID, day: datetime) -> Path:
    """Return the folder of a run's Parquet files."""
    return Path(output) / job / parquet_name(run_id, day)


def require_writable(folder: Path) -> None:
    """Create a folder if it is missing, and raise OSError unless files can be created in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def put_file(source: Path, target: Path) -> None:
    """Copy a file completely or not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Spark ignores names that begin with a dot. The source may be on another disk, so it can't be renamed.
    temporary = target.with_name(f".{target.name}.tmp")
    with source.open("rb") as read, temporary.open("wb") as written:
        while piece := read.read(COPIED_AT_ONCE_BYTES):
            written.write(piece)
    temporary.replace(target)


def write_page(path: Path, html: str) -> None:
    """Write a page completely or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(OsFileSystem(), str(path), html.encode())


def remove_run(output: str, job: str, run_id: UUID, *, with_log: bool) -> None:
    """Remove the files of a run. Files that are missing or can't be removed are skipped."""
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
