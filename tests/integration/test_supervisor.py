"""The supervisor with real processes, its children's logs, and access to folders."""

import asyncio
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gantry.cli.stack.childlogs import LOG_BYTES_MAX, OLD_LOGS_MAX, ChildLog
from gantry.cli.stack.postgres import ServerUser, embedded_postgres, find_programs, first_inaccessible, server_user
from gantry.cli.stack.processes import is_alive, processes_in
from gantry.cli.stack.supervisor import ProcessSpec, Supervisor, ready_file_says
from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.tasks import TaskScope
from services.gateway.db import migrate
from tests.support.postgres import PostgresServer

READY = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps({'pid': os.getpid()}));"
SERVES = READY + "print('serving', flush=True); import time; time.sleep(60)"
DIES_AT_ONCE = (
    "import sys; print('{\"event\": \"starting\"}'); print('x: port 1 is in use'); print('{\"a\": 1}'); sys.exit(1)"
)
LOSES_ITS_STORE = (
    "import os, signal; say = lambda *_: (print('x: the folder was moved', flush=True), os._exit(3));"
    "signal.signal(signal.SIGUSR1, say);" + SERVES
)
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVES
WAIT_S = 10.0


@dataclass
class Watched:
    """A supervisor and all its output."""

    supervisor: Supervisor
    folder: Path
    said: list[str] = field(default_factory=list)

    def spec(self, name: str, code: str, *, rank: int = 0, stop_timeout_s: float = 8.0) -> ProcessSpec:
        ready = self.folder / f"{name}.json"
        return ProcessSpec(
            name=name,
            command=(sys.executable, "-c", code, str(ready)),
            environment=dict(os.environ),
            is_ready=ready_file_says(ready),
            log=ChildLog(self.folder / f"{name}.log"),
            before_start=lambda: ready.unlink(missing_ok=True),
            stop_rank=rank,
            stop_timeout_s=stop_timeout_s,
        )

    async def until_said(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not any(text in line for line in self.said):
            assert time.monotonic() < deadline, self.said
            await asyncio.sleep(0.02)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    said: list[str] = []
    async with TaskScope("test") as scope:
        supervisor = Supervisor(scope, SystemClock(), say=said.append, on_change=lambda: None)
        yield Watched(supervisor, tmp_path, said)
        supervisor.kill()
        await supervisor.stop()


async def test_a_process_that_ends_is_restarted(watched: Watched) -> None:
    await watched.supervisor.start(watched.spec("one", SERVES), watched.spec("two", SERVES))
    before = dict(watched.supervisor.processes)
    os.kill(before["one"], signal.SIGKILL)
    await watched.until_said("one is up again")
    after = dict(watched.supervisor.processes)
    assert after["one"] != before["one"]
    assert after["two"] == before["two"]
    assert watched.said[0] == "one was ended by SIGKILL: restarting it in 0.5 s"
    os.kill(after["one"], signal.SIGTERM)
    await watched.until_said("one was ended by SIGTERM: restarting it in 1 s")


async def test_a_process_that_ends_with_a_final_code_is_not_restarted_until_a_person_acts(watched: Watched) -> None:
    spec = replace(watched.spec("one", LOSES_ITS_STORE), final_codes={3: "Put it back."})
    await watched.supervisor.start(spec, watched.spec("two", SERVES))
    before = dict(watched.supervisor.processes)
    os.kill(before["one"], signal.SIGUSR1)
    await watched.until_said("one ended with code 3 and is not restarted: x: the folder was moved. Put it back.")
    # The other processes are supervised as ever; by the time one of them is up again, this one would be, too.
    os.kill(before["two"], signal.SIGKILL)
    await watched.until_said("two is up again")
    assert [name for name, _ in watched.supervisor.processes] == ["two"]
    assert len([line for line in watched.said if line.startswith("one ")]) == 1


async def test_the_log_of_a_process_that_was_never_ready_is_quoted(watched: Watched) -> None:
    with pytest.raises(StartupError) as caught:
        await watched.supervisor.start(watched.spec("bad", DIES_AT_ONCE))
    assert str(caught.value) == "bad did not start: x: port 1 is in use"


async def test_a_missing_program_is_named(watched: Watched) -> None:
    spec = watched.spec("none", SERVES)
    gone = ProcessSpec(name="none", command=("/no/such/program",), environment={}, is_ready=spec.is_ready, log=spec.log)
    with pytest.raises(StartupError, match="none can't be run: /no/such/program: No such file"):
        await watched.supervisor.start(gone)


async def test_processes_stop_by_rank_and_are_killed_after_a_timeout(watched: Watched) -> None:
    deaf = watched.spec("deaf", DEAF, rank=1, stop_timeout_s=0.5)
    stopped = watched.spec("stopped", SERVES, rank=2, stop_timeout_s=0.5)
    await watched.supervisor.start(watched.spec("polite", SERVES), deaf, stopped)
    pids = dict(watched.supervisor.processes)
    os.kill(pids["stopped"], signal.SIGSTOP)
    began = time.monotonic()
    await watched.supervisor.stop()
    assert time.monotonic() - began < 5
    assert watched.supervisor.processes == []
    assert not [pid for pid in pids.values() if is_alive(pid)]
    assert [line.split()[0] for line in watched.said] == ["deaf", "stopped"]


def test_a_log_is_kept_short_while_it_is_written(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "logs" / "x.log")
    with log.open() as file:
        for generation in range(OLD_LOGS_MAX + 2):
            file.write(f"generation {generation}\n".encode())
            assert not log.rotate()
            file.write(b"x" * LOG_BYTES_MAX + b"\n")
            assert log.rotate()
        file.write(b"the newest\n")
    assert log.path.read_bytes() == b"the newest\n"
    kept = sorted(path.name for path in log.path.parent.iterdir())
    assert kept == ["x.log", *(f"x.log.{number}" for number in range(1, OLD_LOGS_MAX + 1))]
    assert (tmp_path / "logs" / "x.log.1").read_bytes().startswith(f"generation {OLD_LOGS_MAX + 1}\n".encode())
    assert log.last_line() == "the newest"


def test_leftovers_are_found_by_their_folder(own_postgres: PostgresServer) -> None:
    data = own_postgres.directory / "postgres"
    assert own_postgres.pid in processes_in(data, program="postgres")
    assert processes_in(data, program="python") == []
    assert processes_in(own_postgres.directory, program="postgres") == []


def test_an_orphaned_server_is_killed_before_a_new_one_starts(own_postgres: PostgresServer) -> None:
    orphan = own_postgres.pid
    own_postgres.pause()
    own_postgres.start()
    assert own_postgres.pid != orphan
    assert not is_alive(orphan)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: the programs are run by who installed them")
def test_programs_that_the_server_can_not_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = server_user(Path("/nowhere"))
    assert user is not None
    assert first_inaccessible(find_programs() / "postgres", user) is None
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    install = find_programs().parent
    programs = hidden / install.parent.name / install.name / "bin"
    shutil.copytree(install, programs.parent, symlinks=True)
    shutil.copytree(f"{install.parent}.libs", hidden / f"{install.parent.name}.libs")
    assert first_inaccessible(programs / "postgres", user) is not None
    monkeypatch.setattr("gantry.cli.stack.postgres.find_programs", lambda: programs)
    server = PostgresServer()
    try:
        assert list((server.directory / "postgres-18").glob("*/*/bin/postgres"))
        server.start()
        migrate.upgrade(server.url)
    finally:
        server.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: Postgres runs as ourselves, who can enter our folders")
def test_the_data_folder_keeps_its_owner_when_root_runs_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr("gantry.cli.stack.postgres._UNPRIVILEGED", ("nobody",))
    server = PostgresServer(copies_database=False)
    try:
        monkeypatch.undo()
        assert (server.directory / "postgres").stat().st_uid == nobody.pw_uid
        assert embedded_postgres(server.directory).user == ServerUser("nobody", nobody.pw_uid, nobody.pw_gid)
        server.start()
    finally:
        server.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: Postgres runs as ourselves, who can enter our folders")
def test_a_link_needs_access_to_both_ends(tmp_path: Path) -> None:
    user = server_user(Path("/nowhere"))
    assert user is not None
    with tempfile.TemporaryDirectory() as text:
        entrance = Path(text)
        entrance.chmod(0o755)
        closed = entrance / "closed"
        closed.mkdir(mode=0o700)
        (closed / "target").mkdir()
        (entrance / "link").symlink_to(closed / "target")
        assert first_inaccessible(entrance / "link", user) == closed
        (closed / "way-out").symlink_to(entrance)
        assert first_inaccessible(closed / "way-out", user) == closed
        closed.chmod(0o711)
        assert first_inaccessible(entrance / "link", user) is None
