"""`python -m spark.jobs.recording FOLDER`: makes a missing archive of Spark's classes (classarchive.py).

It starts a JVM that records the classes that it loads, rehearses a report, and makes the JVM write the classes when it
ends. That takes one core for half a minute, once for each Java and each Spark of a machine. So it runs with a low
priority.
"""

import sys
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from gantry.runtime.environment import lower_priority, process_environment
from gantry.runtime.errors import AlreadyLockedError, StartupError
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem
from spark.classarchive import OFF, find_archive, keep_archive
from spark.java import find_java
from spark.jobs import lag_report
from spark.jobs.running import rehearse
from spark.session import SessionSettings, archive_key_of, open_session

NICENESS: Final = 19
FREE_BYTES_MIN: Final = 1 << 30
"""The free disk space that must be there. An archive takes 180 MB, and should not fill a disk that is nearly full."""
MASTER: Final = "local[2]"
WRITE_TIMEOUT_S: Final = 120


def record(folder: str, files: FileSystem) -> str:
    """Make the archive if it is missing; return its path.

    Args:
        folder: The folder for the archive. If it is missing, it is made, and only this user gets access to it.
        files: The file system.

    Raises:
        StartupError: There is no Java, or too little space.
        AlreadyLockedError: Another process makes the archive at the moment.
        OSError: The folder can't be written to.
    """
    key = archive_key_of(find_java(process_environment()))
    known = find_archive(folder, key, files)
    if known is not None:
        return known
    # Anybody who can write to this folder can run code in every report of this user.
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = files.lock(f"{folder}/recording.lock")
    try:
        if files.disk_usage(folder).usable < FREE_BYTES_MIN:
            raise StartupError(
                f"{folder}: has less than {FREE_BYTES_MIN >> 20} MiB left, so no archive of classes is made"
            )
        written = f"{folder}/recorded.tmp"
        if files.exists(written):
            files.remove(written)
        _rehearse_and_write(written)
        return keep_archive(written, folder, key, files)
    finally:
        lock.release()


def _rehearse_and_write(path: str) -> None:
    settings = SessionSettings(is_brief=True, has_source=False, class_archive=OFF, written_archive=path)
    spark = open_session("gantry classes", master=MASTER, settings=settings)
    rehearse(lag_report.JOB, spark)
    spark.stop()
    # PySpark has no public function that ends the JVM before this process ends.
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(WRITE_TIMEOUT_S)


def main(folder: str) -> int:
    """Make the archive; return the exit code."""
    lower_priority(NICENESS)
    try:
        print(record(folder, OsFileSystem()))  # noqa: T201 - stdout is a log.
    except (StartupError, AlreadyLockedError, OSError) as error:
        print(f"recording: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
