"""A real stack for tests: `gantry up` with its own folder and ports."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import pytest

from gantry.cli.stack.layout import PORT_BASE_STEP, Layout, StackOptions
from gantry.cli.stack.processes import die_with_parent, family, signal_all
from tests.support.ports import free_base
from tests.support.postgres import copy_new_database

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 30.0
CLASS_ARCHIVE = Path(__file__).resolve().parents[2] / ".cache" / "gantry"
"""The class archive for the JVM that tests/integration/spark/test_recording.py makes, once for many runs."""
# Above the ports of a developer's stack, and with every port below those of outgoing connections.
_BASES = range(3_000, 21_000, PORT_BASE_STEP)


class Stack:
    """A stack that tests may stop, kill and start again."""

    def __init__(
        self,
        *,
        brokers: int = 2,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        scheduler: bool = False,
        makes_database: bool = False,
    ) -> None:
        # No scheduler unless a test asks for one: a report that is due in the middle of a test takes both cores.
        self.scheduler = scheduler
        # As at the first start on a machine. Other tests get a copy of a new, migrated database, which is ready sooner.
        self._makes_database = makes_database
        # Not below pytest's folder: root runs Postgres as an unprivileged user, who has no access to that folder.
        self.directory = directory or Path(tempfile.mkdtemp(prefix="gantry-up-"))
        self.directory.chmod(0o711)
        self.brokers = brokers
        self.port_base = free_base(_BASES, lambda base: _ports(base, brokers))
        self.output = self.directory / "up.out"
        self._extra = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.start_time_s = 0.0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    @property
    def facts(self) -> dict[str, Any]:
        """Return the present content of stack.json."""
        content: dict[str, Any] = json.loads((self.directory / "stack.json").read_text())
        return content

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pid_of(self, name: str) -> int:
        return int(next(process["pid"] for process in self.facts["processes"] if process["name"] == name))

    @property
    def command(self) -> list[str]:
        options = ["--data", str(self.directory), "--brokers", str(self.brokers), "--port-base", str(self.port_base)]
        if not self.scheduler:
            options.append("--no-scheduler")
        return [sys.executable, "-m", "gantry.cli", "up", *options]

    def launch(self) -> None:
        """Start the stack and do not wait."""
        # A supervisor that was killed could not remove it.
        (self.directory / "stack.json").unlink(missing_ok=True)
        if not self._makes_database and "GANTRY_DATABASE_URL" not in self._extra:
            copy_new_database(self.directory)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(self._extra),
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - it only asks the kernel.
            )

    def start(self) -> None:
        """Start the stack and wait until it is ready."""
        began = time.monotonic()
        printed_before = len(self.printed()) if self.output.exists() else 0
        self.launch()
        self.wait_for((self.directory / "stack.json").exists, "to be ready", timeout_s=READY_TIMEOUT_S)
        self.wait_for(lambda: "Gantry is ready at" in self.printed()[printed_before:], "to say so")
        self.start_time_s = time.monotonic() - began

    def wait_for(self, condition: Callable[[], object], what: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, f"gantry up ended: {self.printed()}"
            assert time.monotonic() < deadline, f"waited {timeout_s} s for the stack {what}: {self.printed()}"
            time.sleep(0.05)

    def http(self, *, timeout_s: float = 30.0) -> httpx.Client:
        facts = self.facts
        headers = {"Authorization": f"Bearer {facts['api_key']}"}
        return httpx.Client(base_url=facts["http"], headers=headers, timeout=timeout_s, trust_env=False)

    def printed(self) -> str:
        """Return what the stack printed on the terminal."""
        return self.output.read_text()

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill the supervisor with kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        """Stop the stack in any state, and remove its files."""
        if self._process is not None and self._process.poll() is None:
            signal_all(family(self._process.pid), signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def session_stack() -> Iterator[Stack]:
    """The session's stack of two brokers."""
    with Stack() as running:
        yield running


@pytest.fixture(scope="module")
def stack(session_stack: Stack) -> Iterator[Stack]:
    """The session's stack, without topics and groups at the start of each module.

    A start takes five seconds of processor time. So modules share a stack, unless they need one of their own: with
    other settings, to kill its processes, or to look at everything that it has.
    """
    before = _processes(session_stack)
    yield session_stack
    with session_stack.http() as client:
        for kind in ("topic", "group"):
            _delete_all(client, kind)
        undrained = [broker["drained"] for broker in client.get("/v1/cluster").json()["brokers"]]
    assert undrained == [False, False], "this module leaves a broker drained"
    assert _processes(session_stack) == before, "a process of the shared stack has ended: use a stack of your own"


def _processes(stack: Stack) -> dict[str, int]:
    return {process["name"]: process["pid"] for process in stack.facts["processes"]}


def _delete_all(client: httpx.Client, kind: str) -> None:
    """Delete all topics or all groups, so that the order of modules has no effect."""
    while names := [item[kind] for item in client.get(f"/v1/{kind}s").raise_for_status().json()["items"]]:
        for name in names:
            answer = client.delete(f"/v1/{kind}s/{quote(name, safe='')}")
            assert answer.status_code == 204, answer.text


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without the developer's own GANTRY_ settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
    # Making a class archive takes a core for half a minute, which no test needs; tests use their own one if it exists.
    archive = str(CLASS_ARCHIVE) if any(CLASS_ARCHIVE.glob("spark-*.jsa")) else "off"
    return {**clean, "GANTRY_SCHEDULER_CLASS_ARCHIVE": archive, **(extra or {})}


def _ports(base: int, brokers: int) -> list[int]:
    layout = Layout(StackOptions(data=Path("/nowhere"), brokers=brokers, port_base=base))
    return [port for service in layout.services() for port in service.ports]
