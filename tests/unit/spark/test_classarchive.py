"""The archive of Spark's classes: its key, which file is used, and which files are kept."""

import pytest

from spark.classarchive import (
    AUTO,
    KEPT_MAX,
    OFF,
    archive_folder,
    archive_key,
    find_archive,
    keep_archive,
    reading_options,
    writing_options,
)
from spark.java import Java
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

JAVA = Java("/jvm", 17, "OpenJDK 64-Bit Server VM 17.0.15+6")
JARS = "/spark/jars"
FOLDER = "/cache/gantry"


@pytest.fixture
def clock():
    return FakeClock(1_000)


@pytest.fixture
def files(clock):
    files = MemFileSystem(clock)
    files.make_dirs(JARS)
    files.make_dirs(FOLDER)
    files.write(f"{JARS}/spark-core.jar", b"core")
    files.write(f"{JARS}/spark-sql.jar", b"sql")
    return files


def record(files, clock, key, data=b"classes"):
    clock.advance(1_000)
    files.write(f"{FOLDER}/recorded.tmp", data)
    return keep_archive(f"{FOLDER}/recorded.tmp", FOLDER, key, files)


@pytest.mark.parametrize(
    ("setting", "environment", "folder"),
    [
        (AUTO, {"XDG_CACHE_HOME": "/caches", "HOME": "/h"}, "/caches/gantry"),
        (AUTO, {"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/gantry"),
        (AUTO, {}, None),
        (OFF, {"HOME": "/h"}, None),
        ("/mine", {"HOME": "/h"}, "/mine"),
    ],
)
def test_the_archive_folder_follows_setting_and_environment(setting, environment, folder):
    assert archive_folder(setting, environment) == folder


def test_another_java_or_other_jars_have_another_key(files, clock):
    keys = {archive_key(JAVA, JARS, files)}
    assert keys == {archive_key(JAVA, JARS, files)}
    keys.add(archive_key(Java("/jvm", 17, "OpenJDK 64-Bit Server VM 17.0.16+1"), JARS, files))
    keys.add(archive_key(Java("/other", 17, JAVA.build), JARS, files))
    clock.advance(5_000)
    files.write(f"{JARS}/spark-sql.jar", b"SQL")
    keys.add(archive_key(JAVA, JARS, files))
    files.write(f"{JARS}/more.jar", b"")
    keys.add(archive_key(JAVA, JARS, files))
    assert len(keys) == 5


def test_an_archive_is_found_by_its_key_if_it_is_complete(files, clock):
    path = record(files, clock, "0" * 16)
    assert path == f"{FOLDER}/spark-{'0' * 16}-7.jsa"
    assert files.list_dir(FOLDER) == [f"spark-{'0' * 16}-7.jsa"]
    assert find_archive(FOLDER, "0" * 16, files) == path
    assert find_archive(FOLDER, "1" * 16, files) is None
    assert find_archive("/nowhere", "0" * 16, files) is None
    # The JVM is killed if it maps a file that was cut short.
    files.write(path, b"class")
    assert find_archive(FOLDER, "0" * 16, files) is None


def test_the_newest_archives_and_unrelated_files_stay(files, clock):
    files.write(f"{FOLDER}/spark-mine.jsa", b"")
    paths = [record(files, clock, str(number) * 16) for number in range(KEPT_MAX + 2)]
    kept = [name for name in files.list_dir(FOLDER) if name != "spark-mine.jsa"]
    assert [f"{FOLDER}/{name}" for name in kept] == paths[-KEPT_MAX:]
    assert files.exists(f"{FOLDER}/spark-mine.jsa")


def test_an_archive_that_the_jvm_did_not_write_is_not_kept(files):
    with pytest.raises(FileNotFoundError):
        keep_archive(f"{FOLDER}/recorded.tmp", FOLDER, "0" * 16, files)


def test_options_name_the_file_and_keep_the_jvm_quiet():
    assert reading_options("/a b/c.jsa")[0] == '"-XX:SharedArchiveFile=/a b/c.jsa"'
    assert writing_options("/a b/c.jsa")[0] == '"-XX:ArchiveClassesAtExit=/a b/c.jsa"'
    assert "-Xlog:disable" in reading_options("/c.jsa")
    assert reading_options(None) == reading_options('/a"b/c.jsa') == ()
