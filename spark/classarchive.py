"""The archive of Spark's classes: a file with the JVM's memory layout of them, made once on a machine.

A new JVM reads thousands of classes from Spark's jars, checks and links them. That takes a quarter of the processor
time of a small report. A class-data archive (the JDK's "AppCDS") holds the classes in a form that the JVM can map.
spark/jobs/recording.py makes it while the scheduler is idle, and every session in local mode reads it (session.py).

    FOLDER/spark-KEY-BYTES.jsa

KEY is a hash of the JVM's build and of the path, sizes and times of Spark's jars. Another Java or Spark finds no
archive, and starts without one. BYTES is the length of the file, because a JVM that maps a truncated file is killed.
The JVM itself checks everything else, and ignores an archive that does not fit.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from gantry.runtime.files import FileSystem
from spark.java import Java

AUTO: Final = "auto"
OFF: Final = "off"
KEPT_MAX: Final = 2
"""The limit for archives in a folder, of 180 MB each: one for the Spark in use, and one for a previous or a second
Spark."""
QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without these options, the JVM prints warnings about an archive to stdout, among the rows of a report."""

_NAME: Final = re.compile(r"spark-(?P<key>[0-9a-f]{16})-(?P<bytes>[0-9]+)\.jsa")
_UNQUOTABLE: Final = re.compile(r"[\"\\]")


def archive_folder(setting: str, environment: Mapping[str, str]) -> str | None:
    """Return the folder of archives that a setting names; None if no archive is wanted or there is no cache folder.

    Args:
        setting: AUTO for the folder `gantry` in the user's cache, OFF for none, or a folder.
        environment: The environment; the function reads XDG_CACHE_HOME and HOME.
    """
    if setting != AUTO:
        return None if setting == OFF else setting
    caches = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else "")
    return f"{caches}/gantry" if caches else None


def archive_key(java: Java, jars: str, files: FileSystem) -> str:
    """Return the key in the name of an archive for this Java and the jars of a folder. Raises OSError."""
    digest = hashlib.sha256(f"{java.home}\n{java.build}\n{jars}\n".encode())
    for name, size in sorted(files.list_files(jars)):
        digest.update(f"{name} {size} {files.modified_ms(f'{jars}/{name}')}\n".encode())
    return digest.hexdigest()[:16]


def find_archive(folder: str, key: str, files: FileSystem) -> str | None:
    """Return the path of a complete archive with this key; None if there is none, or if the folder can't be read."""
    try:
        found = files.list_files(folder)
    except OSError:
        return None
    for name, size in found:
        match = _NAME.fullmatch(name)
        if match and match["key"] == key and int(match["bytes"]) == size:
            return f"{folder}/{name}"
    return None


def keep_archive(written: str, folder: str, key: str, files: FileSystem) -> str:
    """Rename an archive that a JVM has written, remove the oldest archives beyond KEPT_MAX, and return the new path.

    Args:
        written: The path of the written file, which is in the same folder.
        folder: The folder of archives.
        key: The key of the archive.
        files: The file system.

    Raises:
        OSError: The JVM has not written the file, or the disk reports an error.
    """
    # The content must be on disk before the name is: a JVM that maps an incomplete file is killed.
    file = files.open(written)
    try:
        file.sync()
    finally:
        file.close()
    path = f"{folder}/spark-{key}-{files.size_bytes(written)}.jsa"
    files.replace(written, path)
    others = [f"{folder}/{name}" for name, _ in files.list_files(folder) if _NAME.fullmatch(name)]
    for old in sorted(set(others) - {path}, key=files.modified_ms, reverse=True)[KEPT_MAX - 1 :]:
        files.remove(old)
    return path


def reading_options(archive: str | None) -> Sequence[str]:
    """Return the options with which a JVM reads an archive."""
    if archive is None or _UNQUOTABLE.search(archive):
        return ()
    # The check of the sums takes a tenth of a second. Without it, damaged classes could crash the process.
    return (f'"-XX:SharedArchiveFile={archive}"', "-XX:+VerifySharedSpaces", *QUIET)


def writing_options(path: str) -> Sequence[str]:
    """Return the options with which a JVM writes an archive of its loaded classes when it ends."""
    return (f'"-XX:ArchiveClassesAtExit={path}"', *QUIET)
