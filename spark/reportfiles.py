"""Where a run's files lie: `OUTPUT/JOB/RUN.html`, `OUTPUT/JOB/day=YYYY-MM-DD/run=RUN/`, `OUTPUT/JOB/RUN.log`.

All of them carry the run's id, so that they are found again whatever became of the run. Light: the scheduler
imports this, and must not wait for pyarrow.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from gantry.runtime.files import write_atomically
from gantry.runtime.osfilesystem import OsFileSystem


def log_file(output: str, job: str, run_id: UUID) -> Path:
    """Return where a run's process writes what it says."""
    return Path(output) / job / f"{run_id}.log"


def page_file(output: str, job: str, run_id: UUID) -> Path:
    """Return where a run's page lies."""
    return Path(output) / job / f"{run_id}.html"


def parquet_folder(output: str, job: str, run_id: UUID, day: datetime) -> Path:
    """Return the folder of a run's Parquet file; Spark reads `day` and `run` from the path."""
    return Path(output) / job / f"day={day.astimezone(UTC):%Y-%m-%d}" / f"run={run_id}"


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
