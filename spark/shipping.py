"""Our own packages as one file, for the workers of a cluster.

The data source's readers run in the workers' Python, so `gantry` and `spark` must be importable there. Where no wheel is
given (`--py-files`), the packages that this process runs are packed as a zip. What they need from others (msgspec, isal,
lz4, …) holds machine code and can't come along: workers have it installed (`pip install 'gantry-mq[spark]'`).
"""

import zipfile
from pathlib import Path
from typing import Final

import gantry

PACKAGES: Final = ("gantry", "spark")
ARCHIVE: Final = "gantry-code.zip"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip can say: the same code gives the same bytes."""


def pack_code(folder: str, *, root: str | None = None) -> str:
    """Write our packages into `folder` and return the zip's path.

    Args:
        folder: Is there already.
        root: Where the packages lie; where this process has them from, by default.

    Raises:
        OSError: It can't be written.
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
    """Return the path of something that Spark puts on its workers' path: a wheel is a zip that Spark only knows as one.

    Args:
        path: A wheel, zip or .py file.
        folder: Where a wheel is copied to.

    Raises:
        OSError: A wheel can't be read or copied.
    """
    source = Path(path)
    if source.suffix != ".whl":
        return path
    target = Path(folder) / f"{source.stem}.zip"
    target.write_bytes(source.read_bytes())
    return str(target)
