"""Spark's classes as the JVM lays them out in memory, in a file that is made once on a machine.

A fresh JVM reads thousands of classes out of Spark's jars, checks and links them: a quarter of a small report's processor
time. A class-data archive (the JDK's "AppCDS") holds them ready; the JVM maps it. It is made by spark/jobs/recording.py,
while the scheduler has nothing else to do, and read by every session on this machine only (session.py).

    FOLDER/spark-KEY-BYTES.jsa

KEY stands for the JVM's build and for Spark's jars, their place, sizes and times: another Java or another Spark finds no
archive and starts as without one. BYTES is the file's length, since a JVM that maps a file which was cut short is killed.
All else the JVM checks itself, and starts without an archive that will not do.
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
"""Archives in a folder, of 180 MB each: of the Spark that is used, and of one before or beside it."""
QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""The JVM would say on stdout, among a report's rows, what it thinks of an archive."""

_NAME: Final = re.compile(r"spark-(?P<key>[0-9a-f]{16})-(?P<bytes>[0-9]+)\.jsa")
_UNQUOTABLE: Final = re.compile(r"[\"\\]")


def archive_folder(setting: str, environment: Mapping[str, str]) -> str | None:
    """Return the folder of archives that a setting names; None where there is to be none.

    Args:
        setting: AUTO: `gantry` in the user's folder for what can be made anew; OFF; else the folder.
        environment: XDG_CACHE_HOME and HOME are read.
    """
    if setting != AUTO:
        return None if setting == OFF else setting
    caches = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else "")
    return f"{caches}/gantry" if caches else None


def archive_key(java: Java, jars: str, files: FileSystem) -> str:
    """Return what an archive for this Java and the jars of a folder is called by. Raises OSError."""
    digest = hashlib.sha256(f"{java.home}\n{java.build}\n{jars}\n".encode())
    for name, size in sorted(files.list_files(jars)):
        digest.update(f"{name} {size} {files.modified_ms(f'{jars}/{name}')}\n".encode())
    return digest.hexdigest()[:16]


def find_archive(folder: str, key: str, files: FileSystem) -> str | None:
    """Return the whole archive of that key; None where there is none, or the folder can't be read."""
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
    """Give an archive that a JVM has written its name, and remove the oldest beyond KEPT_MAX; return its path.

    Args:
        written: The file, in the same folder, of any other name.
        folder: The folder.
        key: What it is for.
        files: Where.

    Raises:
        OSError: It was not written, or the disk does not take it.
    """
    # A name that is there after a power cut must have its content, or each JVM that maps it would end.
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
    """Return the JVM's options that make it use an archive."""
    if archive is None or _UNQUOTABLE.search(archive):
        return ()
    # To check the sums takes a tenth of a second; to map damaged classes would end the process.
    return (f'"-XX:SharedArchiveFile={archive}"', "-XX:+VerifySharedSpaces", *QUIET)


def writing_options(path: str) -> Sequence[str]:
    """Return the JVM's options that make it write an archive of what it has loaded when it ends."""
    return (f'"-XX:ArchiveClassesAtExit={path}"', *QUIET)
