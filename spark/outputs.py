"""The places of a run's results: a folder of this machine, or any file system that Spark knows.

Python writes to a folder. The JVM writes to a URI, through Hadoop's FileSystem. Both copy a complete Parquet file of
this machine.
"""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from gantry.runtime.errors import StartupError
from gantry.runtime.telemetry import logger
from spark.reportfiles import (
    is_uri,
    page_file,
    parquet_folder,
    parquet_name,
    put_file,
    remove_run,
    require_writable,
    write_page,
)

log = logger("spark.jobs")

FILE_NAME: Final = "part-0.parquet"
_FILE_SYSTEM: Final = "org.apache.hadoop.fs"


class OutputRefusedError(StartupError):
    """The output can't be written to; the message names it and says why."""


class Output(Protocol):
    """The place of one run's results.

    Attributes:
        html: The path or the URI of the page.
        parquet: The folder of the Parquet file.
    """

    html: str
    parquet: str

    def write(self, rows: Path, page: str) -> None:
        """Write a copy of the Parquet file `rows`, and the page; each completely or not at all.

        Raises:
            OSError: The output can't be written to.
            Py4JError: The JVM can't write to the output.
        """
        ...

    def remove(self) -> None:
        """Remove what this run has written. Files that can't be removed are left."""
        ...

    def remove_others(self, runs: Sequence[tuple[str, UUID]]) -> None:
        """Remove what other runs, given by job and id, have written. Files that can't be removed are left."""
        ...


def open_output(spark: SparkSession, output: str, *, job: str, run_id: UUID, day: datetime) -> Output:
    """Return the place of a run's results.

    Args:
        spark: The session; it must stay open while the output is used.
        output: A folder, or a URI.
        job: The job's name.
        run_id: The run.
        day: The time of the run; its day in UTC is part of the path.

    Raises:
        OutputRefusedError: This Spark knows no such file system, or can't use it with its settings.
        OSError: The file system can't be written to; another attempt may succeed.
    """
    if is_uri(output):
        return RemoteOutput(spark, output, job=job, run_id=run_id, day=day)
    return FolderOutput(output, job=job, run_id=run_id, day=day)


class FolderOutput:
    """A folder of this machine."""

    def __init__(self, output: str, *, job: str, run_id: UUID, day: datetime) -> None:
        self._output, self._job, self._run_id = output, job, run_id
        self._page = page_file(output, job, run_id).absolute()
        self._parquet = parquet_folder(output, job, run_id, day).absolute()
        self.html, self.parquet = str(self._page), str(self._parquet)
        # Checked now, and not after an hour of work.
        require_writable(self._page.parent)

    def write(self, rows: Path, page: str) -> None:
        """Write rows and page."""
        put_file(rows, self._parquet / FILE_NAME)
        write_page(self._page, page)

    def remove(self) -> None:
        """Remove what was written."""
        self.remove_others([(self._job, self._run_id)])

    def remove_others(self, runs: Sequence[tuple[str, UUID]]) -> None:
        """Remove what other runs have written."""
        for job, run_id in runs:
            remove_run(self._output, job, run_id, with_log=False)


class RemoteOutput:
    """A URI. The JVM writes to it, because the JVM has the settings, credentials and libraries of the file system."""

    def __init__(self, spark: SparkSession, output: str, *, job: str, run_id: UUID, day: datetime) -> None:
        self._output = output.rstrip("/")
        folder = f"{self._output}/{job}"
        self.html = f"{folder}/{run_id}.html"
        self.parquet = f"{folder}/{parquet_name(run_id, day)}"
        # PySpark has no API for Hadoop's file systems.
        context: Any = spark.sparkContext
        self._path = getattr(context._jvm, f"{_FILE_SYSTEM}.Path")  # noqa: SLF001
        try:
            self._files = self._path(folder).getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
        except Py4JJavaError as error:
            raise OutputRefusedError(f"{output}: can't be used: {error.java_exception.toString()}") from None
        try:
            # Checked now, and not after an hour of work.
            is_there = self._files.mkdirs(self._path(folder))
        except Py4JJavaError as error:
            raise OSError(f"{output}: can't be written to: {error.java_exception.toString()}") from None
        if not is_there:
            raise OSError(f"{output}: can't be written to: {folder} can't be made")

    def write(self, rows: Path, page: str) -> None:
        """Write rows and page."""
        self._put(rows, f"{self.parquet}/{FILE_NAME}")
        with tempfile.NamedTemporaryFile(suffix=".html") as file:
            file.write(page.encode())
            file.flush()
            self._put(Path(file.name), self.html)

    def _put(self, source: Path, target: str) -> None:
        # Readers ignore hidden names, so nobody reads an incomplete file.
        folder, _, name = target.rpartition("/")
        hidden = f"{folder}/.{name}.tmp"
        self._files.copyFromLocalFile(False, True, self._path(f"file://{source}"), self._path(hidden))
        # Hadoop's rename does not replace a file, and an earlier attempt of the run may have left one.
        self._files.delete(self._path(target), False)
        if not self._files.rename(self._path(hidden), self._path(target)):
            raise OSError(f"{target}: can't be renamed from {hidden}")

    def remove(self) -> None:
        """Remove what was written."""
        folder, _, name = self.html.rpartition("/")
        for path in (f"{folder}/.{name}.tmp", self.html, self.parquet):
            self._remove(path)

    def remove_others(self, runs: Sequence[tuple[str, UUID]]) -> None:
        """Remove what other runs have written."""
        for job, run_id in runs:
            self._remove(f"{self._output}/{job}/{run_id}.html")
            for found in self._found(f"{self._output}/{job}/day=*/run={run_id}"):
                self._remove(found)

    def _found(self, pattern: str) -> list[str]:
        try:
            return [found.getPath().toString() for found in self._files.globStatus(self._path(pattern)) or ()]
        except (Py4JError, OSError) as error:
            log.warning("files of old runs are left", path=pattern, reason=str(error))
            return []

    def _remove(self, path: str) -> None:
        try:
            self._files.delete(self._path(path), True)
        except (Py4JError, OSError) as error:
            # The JVM may be gone. The reason why the run failed matters more, so this does not raise.
            log.warning("a file is left", path=path, reason=str(error))
