"""File systems in image files, mounted for a test and always unmounted at its end."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_NEEDED = ("mount", "umount", "losetup", "mkfs.ext4")


def skip_without_mounts(what: str, *programs: str) -> None:
    """Skip the test, with the reason, if this user on this machine can't mount images."""
    reason = _missing(programs)
    if reason is not None:
        pytest.skip(f"{what} need {reason}")


def _missing(programs: tuple[str, ...]) -> str | None:
    if os.geteuid() != 0:
        return "root, to mount images"
    lacking = [program for program in (*_NEEDED, *programs) if shutil.which(program) is None]
    if lacking:
        return f"{', '.join(lacking)} (packages mount, e2fsprogs, xfsprogs)"
    probe = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"loop devices: {probe.stderr.strip()}"


def make_image(image: Path, size_bytes: int, *command: str) -> None:
    """Make a sparse file and a file system in it."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    run(*command, str(image))


@contextlib.contextmanager
def mounted(
    image: Path, path: Path, *options: str, else_skip: str | None = None, by_page: bool = False
) -> Iterator[Path]:
    """Mount an image on a folder; unmount it at the end, even if a process still holds files open.

    Args:
        image: A file with a file system in it.
        path: The folder, created if it is missing.
        options: Options of mount.
        else_skip: Beginning of the reason; skip the test if the kernel refuses, as it does in many containers.
        by_page: Make the loop device hand each page to its file separately. By default it reports a larger write as
            complete even if only its first pages found space (Linux 6.18), which no disk may do.
    """
    path.mkdir(exist_ok=True)
    device = _attach_by_page(image) if by_page else None
    source, all_options = (image, ("loop", *options)) if device is None else (device, options or ("defaults",))
    command = ["mount", "-o", ",".join(all_options), str(source), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and else_skip is not None:
        pytest.skip(f"{else_skip}: {done.stderr.strip()}")
    if device is not None:
        run("losetup", "--detach", device)  # The loop device goes once it is unmounted.
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    try:
        yield path
    finally:
        done = subprocess.run(["umount", str(path)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            # Detached at once, and gone with the last open file. The test has failed to close a file.
            run("umount", "--lazy", str(path))
        assert done.returncode == 0, done.stderr


def _attach_by_page(image: Path) -> str:
    device = run("losetup", "--find", "--show", "--direct-io=off", str(image)).strip()
    Path(f"/sys/block/{Path(device).name}/queue/max_sectors_kb").write_text("4")
    return device


def run(*command: str) -> str:
    """Run a program that must succeed; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
