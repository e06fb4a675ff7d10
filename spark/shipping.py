"""Packs our own packages into one file for the workers of a cluster.

The readers of the data source run in the workers' Python, so it must be able to import `gantry` and `spark`. If no
wheel is given (`--py-files`), this module packs the packages of this process into a zip. Their dependencies (msgspec,
isal, lz4, …) contain machine code and can't be shipped, so they must be installed on the workers (`pip install
'gantry-mq[spark]'`).
"""

import zipfile
from pathlib import Path
from typing import Final

import gantry

PACKAGES: Final = ("gantry", "spark")
ARCHIVE: Final = "gantry-code.zip"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip can hold. With a fixed time, the same code gives the same bytes."""


def pack_code(folder: str, *, root: str | None = None) -> str:
    """Write our packages into `folder` and return the zip's path.

    Args:
        folder: An existing folder.
        root: The folder of the packages; by default the one from which this process has loaded them.

    Raises:
        OSError: The zip can't be written.
    """
    base = Path(root) if root is not None else Path(gantry.__file__).parent.parent
    target = Path(folder) / ARCHIVE
    with zipfile.ZipFile(target, "w") as archive:
        for package in PACKAGES:
            for path in sorted((base / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    entry = zipfile.ZipInfo(path.relative_to(base).as_posix(), date_time=_EPOCH)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, path.read_bytes())
    return str(target)


def as_py_file(path: str, folder: str) -> str:
    """Return the path of a file that Spark can put on its workers' path. A wheel is copied to a .zip.

    Args:
        path: A wheel, a zip or a .py file.
        folder: The folder for the copy of a wheel.

    Raises:
        OSError: A wheel can't be read or copied.
    """
    source = Path(path)
    if source.suffix != ".whl":
        return path
    target = Path(folder) / f"{source.stem}.zip"
    target.write_bytes(source.read_bytes())
    return str(target)
