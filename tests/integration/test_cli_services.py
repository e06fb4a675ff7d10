"""`gantry namesrv|broker|gateway|scheduler|migrate`: each runs one service, as README and docker-compose.yml use them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gantry.cli.launch import SERVICES
from tests.support.stack import environment

ROOT = Path(__file__).resolve().parents[2]
READY_S = 30.0
GANTRY = (sys.executable, "-m", "gantry.cli")
# The name of a service stands for commands about running ones, too, so its options are those of `run`.
WITH_COMMANDS = {"broker"}


def gantry(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment({}) | {"COLUMNS": "100"}
    return subprocess.run([*GANTRY, *arguments], env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_shows_its_own_options(name: str) -> None:
    command = (name, "run") if name in WITH_COMMANDS else (name,)
    shown = gantry(*command, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"usage: gantry {name} ")


@pytest.mark.parametrize("command", [("broker",), ("broker", "run")], ids=" ".join)
def test_a_broker_is_run_by_its_options_alone(command: tuple[str, ...], tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    options = ("--name", "broker-a", "--cluster", "c", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    files = (
        "--store",
        str(tmp_path / "store"),
        "--metrics-port",
        "off",
        "--fast-port",
        "off",
        "--ready-file",
        str(ready),
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*GANTRY, *command, *options, *files], env=environment({}), stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        # The process of the command became the service: signals and its exit code reach the caller.
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(READY_S) == 0
    finally:
        process.kill()
        process.wait()


def test_every_service_of_the_images_runs_by_options_alone() -> None:
    """The options of docker-compose.yml follow the entry point, so no command can stand between them."""
    entries = re.findall(r'ENTRYPOINT \["gantry", "(\w+)"\]', (ROOT / "docker" / "Dockerfile").read_text())
    assert set(entries) == set(SERVICES)
    for name in entries:
        refused = gantry(name, "--no-such-option=1")
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"usage: gantry {name} "), name


def test_the_help_lists_each_command_once() -> None:
    names = re.findall(r"^│ ([a-z][a-z-]*)  ", gantry("--help").stdout, re.MULTILINE)
    assert set(SERVICES) <= set(names)
    assert len(names) == len(set(names)), names
