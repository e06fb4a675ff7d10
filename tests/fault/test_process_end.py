"""A process whose system calls fail at its end: it prints one line and exits with a code, never with a traceback."""

import subprocess
import sys
from typing import Final

import pytest

# uvloop calls `signal.set_wakeup_fd` at the start of each run of the loop; the call fails if `fstat` has no memory.
_PROGRAM: Final = """
import errno, os, signal, sys
real, is_failing = signal.set_wakeup_fd, False

def failing(fd, **options):
    if is_failing and fd != -1:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return real(fd, **options)

signal.set_wakeup_fd = failing
from gantry.runtime.lifecycle import run_service

async def main(lifecycle):
    global is_failing
    {body}

{before}
sys.exit(run_service("service", main))
"""


def ended(body: str, before: str = "") -> tuple[int, str]:
    program = _PROGRAM.format(body=body, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    print(done.stdout, done.stderr)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("body", "before"), [("is_failing = True", ""), ("pass", "is_failing = True")], ids=["at its end", "at its start"]
)
def test_a_loop_that_can_not_turn_ends_the_process_with_one_line(body: str, before: str) -> None:
    """After that uvloop considers the loop running for ever: closing it raised "Cannot close a running event loop"."""
    code, said = ended(body, before)
    assert code == 1
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("service: ")] == [
        "service: the operating system refused what the process needs: Cannot allocate memory"
    ]


def test_an_error_of_the_operating_system_in_the_service_names_the_file() -> None:
    code, said = ended("open('/nothing/here')")
    assert (code, said) == (
        1,
        "service: the operating system refused what the process needs: No such file or directory (/nothing/here)\n",
    )


def test_an_error_in_a_task_at_the_end_is_not_hidden_by_the_loop() -> None:
    code, said = ended("is_failing = True; raise ValueError('a bug')")
    assert code == 1
    assert "ValueError: a bug" in said
    assert "Cannot close a running" not in said
