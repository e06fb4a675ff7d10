"""The archive of Spark's classes, with a real JVM: made once, mapped by those that come after, harmless when it is broken."""

import subprocess
import sys
from pathlib import Path
from shutil import copyfile, which

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from spark.jobs.recording import main, record
from tests.support.stack import CLASS_ARCHIVE

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.skipif(which("java") is None, reason="no java: Spark's classes were not recorded"),
    # A JVM that writes its classes, and two that read them.
    pytest.mark.timeout(600),
]
COUNT = """
import sys
from spark.session import SessionSettings, open_session
settings = SessionSettings(is_brief=True, has_source=False, class_archive=sys.argv[1])
session = open_session("archive", master="local[1]", settings=settings)
pid = session.sparkContext._gateway.proc.pid
print("mapped" if sys.argv[1] in open(f"/proc/{pid}/maps").read() else "plain", session.range(1000).count())
"""


@pytest.fixture(scope="module")
def archive() -> Path:
    """The archive of this machine's tests, made if it is missing."""
    subprocess.run([sys.executable, "-m", "spark.jobs.recording", str(CLASS_ARCHIVE)], cwd=ROOT, check=True)
    return Path(record(str(CLASS_ARCHIVE), OsFileSystem()))


def counted(folder: Path) -> str:
    """Count in a Spark of its own; return whether its JVM had a file of that folder mapped, and what it printed besides."""
    command = [sys.executable, "-c", COUNT, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_session_maps_the_archive_and_says_nothing_of_it(archive: Path) -> None:
    assert counted(archive.parent) == "mapped 1000\n"


def test_a_damaged_archive_is_passed_over(archive: Path, tmp_path: Path) -> None:
    damaged = tmp_path / archive.name
    copyfile(archive, damaged)
    with damaged.open("r+b") as file:
        file.seek(archive.stat().st_size // 3)
        file.write(bytes(64 << 20))
    assert counted(tmp_path) == "plain 1000\n"


def test_one_process_makes_it_at_a_time(tmp_path: Path) -> None:
    lock = OsFileSystem().lock(str(tmp_path / "recording.lock"))
    try:
        command = [sys.executable, "-m", "spark.jobs.recording", str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("recording: ")
    finally:
        lock.release()


def test_a_folder_that_can_not_be_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark.jobs.recording.lower_priority", lambda niceness: None)
    (tmp_path / "file").write_text("")
    assert main(str(tmp_path / "file" / "folder")) == 1
    assert "Not a directory" in capsys.readouterr().err
