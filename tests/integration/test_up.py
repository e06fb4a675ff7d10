"""`gantry up`: ready in time, supervised, stopped cleanly, and nothing of it left behind."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantry.cli.stack.layout import Layout, StackOptions
from gantry.cli.stack.processes import family, is_alive, kill_all, wait_until_gone
from tests.support.stack import Stack, environment

READY_WITHIN_S = 15.0
STOPPED_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(scheduler=True) as running:
        yield running


def send(client: httpx.Client, topic: str, body: str, *, broker: str = "broker-a") -> dict[str, Any]:
    """Send one message as a user with curl would; until the stack has recovered a send may be refused."""
    message = {"body": body, "queue": {"broker": broker, "id": 0}}
    deadline = time.monotonic() + 30
    while True:
        try:
            answer = client.post(f"/v1/topics/{topic}/messages", json=message)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code == 201:
            sent: dict[str, Any] = answer.json()
            return sent
        assert time.monotonic() < deadline, answer and answer.text
        time.sleep(0.2)


def bodies(client: httpx.Client, topic: str, *, broker: str = "broker-a") -> list[str]:
    answer = client.get(f"/v1/topics/{topic}/queues/{broker}/0/messages", params={"offset": "0", "limit": 1000})
    assert answer.status_code == 200, answer.text
    return [message["body"] for message in answer.json()["messages"]]


def make_topic(client: httpx.Client, topic: str) -> None:
    answer = client.put(f"/v1/topics/{topic}", json={"read_queues": 1, "write_queues": 1})
    assert answer.status_code in {200, 201}, answer.text


def test_it_is_ready_in_time_and_stops_cleanly() -> None:
    with Stack(scheduler=True, makes_database=True) as stack:
        # The promise holds on an otherwise idle machine.
        crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert stack.start_time_s < READY_WITHIN_S * crowd
        with stack.http() as client:
            make_topic(client, "CLEAN")
            for number in range(10):
                send(client, "CLEAN", f"m{number}", broker=("broker-a", "broker-b")[number % 2])
        pids = family(stack.pid)
        began = time.monotonic()
        assert stack.terminate() == 0
        assert time.monotonic() - began < STOPPED_WITHIN_S
        assert not [pid for pid in pids if is_alive(pid)]
        assert not (stack.directory / "stack.json").exists()
        assert not list(stack.directory.glob("broker-*/abort")), "a broker did not stop cleanly"
        assert not (stack.directory / "postgres" / "postmaster.pid").exists()
        assert "is killed" not in stack.printed()

        key = (stack.directory / "api-key").read_text()
        stack.start()
        assert (stack.directory / "api-key").read_text() == key
        with stack.http() as client:
            assert bodies(client, "CLEAN") + bodies(client, "CLEAN", broker="broker-b") == [
                *(f"m{number}" for number in range(0, 10, 2)),
                *(f"m{number}" for number in range(1, 10, 2)),
            ]


def test_stack_json_is_what_the_contract_says(stack: Stack) -> None:
    path = stack.directory / "stack.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    facts = stack.facts
    assert list(facts) == ["http", "api_key", "namesrv", "brokers", "postgres", "console", "processes"]
    assert facts["namesrv"] == [f"127.0.0.1:{9876 + stack.port_base}"]
    assert [set(broker) for broker in facts["brokers"]] == [{"cluster", "name", "id", "address", "store"}] * 2
    assert facts["console"] == {
        "url": f"{facts['http']}/console",
        "user": "admin",
        "password_file": str(stack.directory / "admin-password"),
    }
    assert Path(facts["console"]["password_file"]).is_file()
    names = {process["name"] for process in facts["processes"]}
    assert names == {"namesrv-0", "broker-a", "broker-b", "gateway-0", "postgres", "scheduler"}
    assert all(is_alive(process["pid"]) for process in facts["processes"])
    assert Path(facts["brokers"][0]["store"]).is_dir()


def test_the_printed_lines_work_as_they_are(stack: Stack) -> None:
    lines = [line.strip() for line in stack.printed().splitlines() if line.strip().startswith("curl ")]
    assert len(lines) == 3
    said = [subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout for line in lines]
    assert '"outcome":"stored"' in said[1].replace(" ", "")
    assert "hello" in said[2]


def test_the_scheduler_runs_and_lists_its_schedules(stack: Stack) -> None:
    with stack.http() as client:
        stack.wait_for(
            lambda: all(item["next_run_at"] for item in client.get("/v1/reports").json()["items"]), "to plan"
        )
    # The scheduler is light: a user who never opens a report pays next to nothing.
    status = Path(f"/proc/{stack.pid_of('scheduler')}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident < 100 * 1024, "kB"


def test_without_a_scheduler() -> None:
    with Stack(brokers=1) as stack:
        assert "scheduler" not in {process["name"] for process in stack.facts["processes"]}


def test_a_scheduler_that_is_killed_is_started_again(stack: Stack) -> None:
    old = stack.pid_of("scheduler")
    os.kill(old, signal.SIGKILL)
    stack.wait_for(lambda: "scheduler was ended by SIGKILL: restarting it" in stack.printed(), "to notice")
    stack.wait_for(lambda: "scheduler is up again" in stack.printed(), "to start it again")
    assert stack.pid_of("scheduler") != old


@pytest.mark.parametrize("name", ["broker-a", "gateway-0", "namesrv-0", "postgres"])
def test_a_killed_process_is_restarted(stack: Stack, name: str) -> None:
    topic = f"KILLED_{name.replace('-', '_')}"
    with stack.http() as client:
        make_topic(client, topic)
        before = send(client, topic, "before")
        old = stack.pid_of(name)
        os.kill(old, signal.SIGKILL)
        stack.wait_for(lambda: f"{name} was ended by SIGKILL: restarting it" in stack.printed(), "to notice")
        stack.wait_for(lambda: name in str(stack.facts["processes"]) and stack.pid_of(name) != old, "to start it again")
        send(client, topic, "after")
        assert bodies(client, topic) == ["before", "after"]
        # A restarted name server learns of the brokers from their next heartbeat.
        path = f"/v1/messages/{before['stored_id']}"
        stack.wait_for(lambda: client.get(path).status_code == 200, "to find a message", timeout_s=60)
        # Metadata too: a change needs the gateway, Postgres and a broker.
        stack.wait_for(
            lambda: client.put(f"/v1/topics/{topic}_2", json={}).status_code in {200, 201}, "to be whole", timeout_s=60
        )


@pytest.mark.parametrize("all_at_once", [False, True])
def test_killing_the_supervisor_leaves_no_orphans_and_loses_no_message(all_at_once: bool) -> None:
    with Stack(brokers=1) as stack:
        with stack.http() as client:
            make_topic(client, "T")
            sent = [send(client, "T", f"m{number}")["queue_offset"] for number in range(20)]
        pids = family(stack.pid)
        assert len(pids) > 5
        if all_at_once:
            kill_all(pids)
        stack.kill()
        assert wait_until_gone(pids, timeout_s=10), "orphans"
        stack.start()
        with stack.http() as client:
            assert bodies(client, "T") == [f"m{number}" for number in range(20)]
            assert int(send(client, "T", "next")["queue_offset"]) == int(sent[-1]) + 1


def test_a_broker_that_has_lost_its_store_is_not_started_on_an_empty_one() -> None:
    with Stack(brokers=2) as stack:
        store = Path(stack.facts["brokers"][0]["store"])
        moved = store.with_name("moved")
        with stack.http() as client:
            make_topic(client, "T")
            send(client, "T", "kept")
            store.rename(moved)
            stack.wait_for(lambda: "broker-a ended with code 3 and is not restarted" in stack.printed(), "to notice")
            assert f"the store's folder was moved or removed: {store}" in stack.printed()
            send(client, "T", "elsewhere", broker="broker-b")
        assert {"broker-b", "gateway-0", "namesrv-0"} <= {process["name"] for process in stack.facts["processes"]}
        assert "broker-a" not in {process["name"] for process in stack.facts["processes"]}
        assert not store.exists()
        assert stack.terminate() == 0
        moved.rename(store)
        stack.start()
        with stack.http() as client:
            assert bodies(client, "T") == ["kept"]
            assert send(client, "T", "next")["queue_offset"] == "1"


def test_two_stacks_run_beside_each_other(stack: Stack) -> None:
    with Stack(brokers=1) as other, stack.http() as one, other.http() as two:
        for client, body in ((one, "one"), (two, "two")):
            make_topic(client, "BESIDE")
            send(client, "BESIDE", body)
        assert (bodies(one, "BESIDE"), bodies(two, "BESIDE")) == (["one"], ["two"])
        assert two.get("/v1/topics", headers={"Authorization": f"Bearer {stack.facts['api_key']}"}).status_code == 401


def refused(*options: str, extra: dict[str, str] | None = None) -> str:
    """Start `gantry up`, expect it to refuse with one line and code 1, and return the line."""
    done = subprocess.run(
        [sys.executable, "-m", "gantry.cli", "up", *options],
        capture_output=True,
        text=True,
        env=environment(extra),
        timeout=60,
        check=False,
        cwd="/tmp",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_second_one_on_the_same_folder_is_refused(stack: Stack) -> None:
    line = refused("--data", str(stack.directory), "--port-base", str(stack.port_base))
    assert "runs on" in line
    assert stack.facts["processes"]


def test_a_second_stack_is_refused_even_if_the_lock_file_was_removed(stack: Stack) -> None:
    before = stack.facts
    (stack.directory / "lock").unlink()
    with Stack(brokers=1) as other:  # Used only for its ports.
        base = str(other.port_base)
    assert "runs on" in refused("--data", str(stack.directory), "--port-base", base)
    assert stack.facts == before, "it removes neither stack.json nor Postgres"
    assert all(is_alive(process["pid"]) for process in before["processes"])


def test_a_port_in_use_is_named(stack: Stack, tmp_path: Path) -> None:
    line = refused("--data", str(tmp_path / "d"), "--port-base", str(stack.port_base))
    assert f"port {9876 + stack.port_base} of namesrv-0 is in use" in line
    assert "--port-base" in line


def test_invalid_settings_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--brokers 0" in refused("--brokers", "0")
    assert "--port-base 7" in refused("--port-base", "7")
    assert "is a file" in refused("--data", str(tmp_path / "file"))
    assert "no such address" in refused("--data", str(tmp_path / "d"), "--host", "192.0.2.1")
    assert "GANTRY_NO_SUCH" in refused(extra={"GANTRY_NO_SUCH": "1"})
    assert "GANTRY_CONFIG" in refused(extra={"GANTRY_CONFIG": "/etc/gantry.toml"})


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: Postgres runs as ourselves, who can enter our folders")
def test_a_folder_whose_parents_postgres_can_not_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with Stack(brokers=1) as stack:  # Used only for its ports.
        base = str(stack.port_base)
    line = refused("--data", str(closed / "data"), "--port-base", base)
    assert "can't enter" in line
    assert "--data elsewhere" in line


def test_a_service_that_can_not_start_is_quoted(tmp_path: Path) -> None:
    stack = Stack(brokers=1)
    try:
        (stack.directory / "namesrv.toml").write_text("no_such_setting = 1\n")
        stack.launch()
        assert stack.wait() == 1
        assert "namesrv-0 did not start: namesrv: " in stack.printed()
        assert "no_such_setting" in stack.printed()
        assert "Traceback" not in stack.printed()
    finally:
        stack.remove()


def test_a_stop_while_starting_leaves_nothing() -> None:
    stack = Stack(brokers=1, makes_database=True)
    try:
        stack.launch()
        stack.wait_for(lambda: len(family(stack.pid)) > 2, "to start something")
        pids = family(stack.pid)
        assert stack.terminate() == 0
        assert not [pid for pid in pids if is_alive(pid)]
        assert not list(stack.directory.glob("broker-*/abort"))
    finally:
        stack.remove()


def test_a_lost_key_file_is_created_again_and_the_old_key_stays_valid() -> None:
    with Stack(brokers=1) as stack:
        old = stack.facts["api_key"]
        key_file = stack.directory / "api-key"
        key_file.unlink()
        os.kill(stack.pid_of("broker-a"), signal.SIGKILL)
        stack.wait_for(lambda: "broker-a is up again" in stack.printed(), "to start it again")
        assert stack.facts["api_key"] == old
        assert "was missing" not in stack.printed()
        assert stack.terminate() == 0
        stack.start()
        new = stack.facts["api_key"]
        assert new == key_file.read_text().strip() != old
        assert new in stack.printed()
        replaced = f"{key_file} was missing, so this API key is a new one"
        stack.wait_for(lambda: replaced in stack.printed(), "to report the new key")
        with stack.http() as client:
            for key in (old, new):
                assert client.get("/v1/keys", headers={"Authorization": f"Bearer {key}"}).status_code == 200
            assert len(client.get("/v1/keys").json()["items"]) == 2


def test_only_a_second_ctrl_c_kills() -> None:
    with Stack(brokers=1) as stack:
        hanging = stack.pid_of("gateway-0")
        os.kill(hanging, signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(stack.pid, number)
            stack.wait_for(lambda: "stopping" in stack.printed(), "to stop")
        stack.wait_for(lambda: "press Ctrl-C again" in stack.printed(), "to take note")
        os.kill(stack.pid, signal.SIGTERM)
        os.kill(hanging, signal.SIGCONT)
        assert stack.wait() == 0
        assert "kill" not in stack.printed().replace("to kill all services", "")
        assert not list(stack.directory.glob("broker-*/abort")), "a broker did not stop cleanly"
        stack.start()
        os.kill(stack.pid_of("gateway-0"), signal.SIGSTOP)
        os.kill(stack.pid, signal.SIGINT)
        stack.wait_for(lambda: stack.printed().count("press Ctrl-C again") == 2, "to take note")
        os.kill(stack.pid, signal.SIGINT)
        assert stack.wait() == 0
        assert "killing all services" in stack.printed()


def test_a_hanging_service_does_not_delay_the_stop() -> None:
    with Stack(brokers=1) as stack:
        os.kill(stack.pid_of("namesrv-0"), signal.SIGSTOP)
        began = time.monotonic()
        assert stack.terminate() == 0
        assert time.monotonic() - began < STOPPED_WITHIN_S + 2
        assert "namesrv-0 did not stop" in stack.printed()


def test_a_stale_pid_file_of_postgres_is_no_obstacle() -> None:
    with Stack(brokers=1) as stack:
        assert stack.terminate() == 0
        # As after a power cut in a container: another process has the pid by now.
        pid_file = stack.directory / "postgres" / "postmaster.pid"
        pid_file.write_text(f"{os.getpid()}\n{stack.directory}/postgres\n1\n5432\n{stack.directory}/run\n\n1 1\n")
        os.chown(pid_file, *_owner(stack.directory / "postgres"))
        pid_file.chmod(0o600)
        stack.start()


def _owner(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


def test_all_services_listen_on_loopback_only(stack: Stack) -> None:
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A"]
    layout = Layout(StackOptions(data=stack.directory, port_base=stack.port_base))
    ours = [
        address
        for address in listening
        for service in layout.services()
        if int(address.partition(":")[2], 16) in service.ports
    ]
    assert len(ours) >= 4
    assert all(address.startswith("0100007F:") for address in ours)
