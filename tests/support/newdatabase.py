"""A new database for each stack and server: initdb runs once in a process of the test run, and its folder is copied."""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from gantry.cli.stack.postgres import embedded_postgres


def copy_new_database(directory: Path) -> None:
    """Put a new data folder of Postgres into a stack's folder, unless it has one.

    initdb takes a second of processor time and waits for the disk. A test run needs some fifty databases.
    """
    target = directory / "postgres"
    if not target.exists():
        # With the owner and the modes: Postgres refuses a folder that is not its user's alone.
        subprocess.run(["cp", "-a", "--reflink=auto", _new_database(), target], check=True)


@cache
def _new_database() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="gantry-initdb-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    # Not closed to the unprivileged user that a root's Postgres runs as.
    directory.chmod(0o711)
    postgres = embedded_postgres(directory)
    postgres.prepare()
    return postgres.data
