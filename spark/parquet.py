"""A run's rows as a Parquet file."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

FILE_NAME = "part-0.parquet"


def write_parquet(folder: Path, table: pa.Table) -> None:
    """Write a table as the one file of a folder, whole or not at all.

    Times keep milliseconds, which is what the brokers have. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Spark passes over files whose names begin with a dot.
    temporary = folder / f".{FILE_NAME}.tmp"
    parquet.write_table(table, temporary, compression="zstd", coerce_timestamps="ms", allow_truncated_timestamps=True)
    temporary.replace(folder / FILE_NAME)
