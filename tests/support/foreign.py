"""Foreign peers, fetched by their own package managers into .cache and used unmodified.

Java: Apache RocketMQ 5.3.3's broker, name server, client and mqadmin, the mqadmin of 4.9.8, and Alibaba Cloud's
ons-client 1.8.8 (Maven Central). Node: ali-ons (npm). Go: Apache RocketMQ's rocketmq-client-go.

Tests that need java, mvn, node, npm or go are skipped on a machine without these programs. The closing report of the test
run repeats the reason.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_base

FOREIGN = Path(__file__).resolve().parent.parent / "conformance" / "foreign"
CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "foreign"
# Fast start-up; benchmarks run with Java's defaults instead.
JAVA = ["java", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
JAVA_MEASURED = ["java", "-Xms2g", "-Xmx2g"]
FETCH_TIMEOUT_S = 600
_PORTS = range(6_400, 7_900, 5)


def java_classpath() -> str:
    """Return the class path of the Java peers, fetched at first use; skips if java or mvn is missing."""
    # FOREIGN comes first: its rmq.logback.xml silences the peers' configuration chatter.
    return f"{FOREIGN}:{_java_library('pom.xml', CACHE / 'java' / 'lib')}/*"


def _java_library(pom: str, library: Path) -> Path:
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("java or mvn is missing: Apache RocketMQ's own client, broker and mqadmin were not tried")
    with _lock(library):
        if not (library / ".complete").exists():
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={library}"]
            _run(["mvn", "-q", "-B", "-f", str(FOREIGN / pom), *goal], timeout_s=FETCH_TIMEOUT_S)
            (library / ".complete").touch()
    return library


def node_peer() -> Path:
    """Return the folder with ali-ons installed, fetched at first use; skips if node or npm is missing."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is missing: the ali-ons client was not tried")
    folder = CACHE / "node"
    with _lock(folder):
        if not (folder / "node_modules" / ".complete").exists():
            shutil.copy(FOREIGN / "package.json", folder / "package.json")
            install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
            _run(install, cwd=folder, timeout_s=FETCH_TIMEOUT_S)
            (folder / "node_modules" / ".complete").touch()
        for program in FOREIGN.glob("*.js"):
            shutil.copy(program, folder / program.name)
    return folder


def go_client(*arguments: str, typed: str = "", timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run one scenario of the Go program and return the JSON objects it printed."""
    return json_lines(_run([str(_go_program()), *arguments], timeout_s=timeout_s, typed=typed))


@contextlib.contextmanager
def go_running(log: Path, *arguments: str) -> Iterator[Callable[[], None]]:
    """Run one scenario of the Go program, which prints into a file. Yields a function that ends its input, and waits."""
    with _running_program([str(_go_program()), *arguments], log) as end:
        yield end


def _go_program() -> Path:
    """Return the program of the Go client, built at first use; skips if go or the client's module is missing."""
    if shutil.which("go") is None:
        pytest.skip("go is missing: Apache RocketMQ's Go client was not tried")
    folder, sources = CACHE / "go", FOREIGN / "go"
    program = folder / "peer"
    with _lock(folder):
        newest = max(file.stat().st_mtime for file in sources.iterdir())
        if not program.exists() or program.stat().st_mtime < newest:
            fetch = ["go", "mod", "download"]
            done = subprocess.run(
                fetch, cwd=sources, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
            if done.returncode != 0:
                reason = " ".join(done.stderr.split())[-300:]
                pytest.skip(f"the module of Apache RocketMQ's Go client can't be fetched, it was not tried: {reason}")
            _run(["go", "build", "-o", str(program), "."], cwd=sources, timeout_s=FETCH_TIMEOUT_S)
    return program


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Make the folder, and fill it under a lock against the other processes of the test run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def java_client(*arguments: str, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run one scenario of RocketmqPeer.java and return the JSON objects it printed."""
    return json_lines(_run_rocketmq("RocketmqPeer", arguments, timeout_s))


@contextlib.contextmanager
def java_push_consumer(namesrv: str, topic: str, group: str, log: Path) -> Iterator[None]:
    """Run a push consumer of RocketmqPeer.java, which prints the messages that it gets into a file."""
    with _running_client(log, "consume", namesrv, topic, group):
        yield


@contextlib.contextmanager
def java_stream_producer(namesrv: str, topic: str, log: Path) -> Iterator[Callable[[], None]]:
    """Run a producer of RocketmqPeer.java that sends all the time, and prints the results into a file.

    Yields a function that ends it, and waits until it has printed everything.
    """
    with _running_client(log, "stream", namesrv, topic) as end:
        yield end


@contextlib.contextmanager
def _running_client(log: Path, *arguments: str) -> Iterator[Callable[[], None]]:
    classpath, classes = java_classpath(), CACHE / "java" / "classes"
    _compile("RocketmqPeer", classpath, classes)
    with _running_program([*JAVA, "-cp", f"{classes}:{classpath}", "RocketmqPeer", *arguments], log) as end:
        yield end


@contextlib.contextmanager
def _running_program(command: Sequence[str], log: Path) -> Iterator[Callable[[], None]]:
    """Run a program that prints into a file. Yields a function that ends its input, and waits for its end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | _java_home(),
        )
    assert process.stdin is not None

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0, log.read_text(errors="replace")[-4000:]

    try:
        yield end
    finally:
        process.kill()
        process.wait(60)
        process.stdin.close()


def java_features(*arguments: str, timeout_s: float = 180) -> list[dict[str, Any]]:
    """Run programs of FeaturesPeer.java side by side and return the JSON objects they printed."""
    return json_lines(_run_rocketmq("FeaturesPeer", arguments, timeout_s))


def java_pop(*arguments: str, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run PopPeer.java and return the JSON objects it printed."""
    return json_lines(_run_rocketmq("PopPeer", arguments, timeout_s))


def ons_client(namesrv: str, *, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run OnsPeer.java and return the JSON objects it printed."""
    folder = CACHE / "java-ons"
    library = _java_library("pom-ons.xml", folder / "lib")
    # It writes its log into the home folder.
    java = [*JAVA, f"-Duser.home={folder}"]
    return json_lines(_run_peer("OnsPeer", f"{library}/*", folder / "classes", (namesrv,), timeout_s, java=java))


def mqadmin(*commands: tuple[str, ...], timeout_s: float = 180) -> list[str]:
    """Run mqadmin commands one after the other and return the output of each."""
    arguments = ["mqadmin", *commands[0]]
    for command in commands[1:]:
        arguments += ["--then", *command]
    output = _run_rocketmq("RocketmqPeer", arguments, timeout_s)
    printed = [part.partition("\n")[2] for part in output.split("=== ")[1:]]
    assert len(printed) == len(commands), f"{len(commands)} commands, {len(printed)} answers:\n{output[-4000:]}"
    return printed


def mqadmin_4_9(*command: str, timeout_s: float = 180) -> str:
    """Run one command of the mqadmin of Apache RocketMQ 4.9.8 and return its output."""
    library = _java_library("pom-4.9.xml", CACHE / "java-4.9" / "lib")
    home = CACHE / "java-4.9" / "home"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    # This release requires the option for every command.
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>\n")
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    environment = {"ROCKETMQ_HOME": str(home)}
    return _run([*JAVA, "-cp", f"{library}/*", main, *command], timeout_s=timeout_s, environment=environment)


def _run_rocketmq(name: str, arguments: Sequence[str], timeout_s: float) -> str:
    return _run_peer(name, java_classpath(), CACHE / "java" / "classes", arguments, timeout_s)


def _run_peer(
    name: str,
    classpath: str,
    classes: Path,
    arguments: Sequence[str],
    timeout_s: float,
    *,
    java: Sequence[str] = tuple(JAVA),
) -> str:
    _compile(name, classpath, classes)
    command = [*java, "-cp", f"{classes}:{classpath}", name, *arguments]
    return _run(command, timeout_s=timeout_s, environment=_java_home())


def _compile(name: str, classpath: str, classes: Path) -> None:
    compiled = classes / f"{name}.class"
    source = FOREIGN / f"{name}.java"
    with _lock(classes):
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            _run(["javac", "-nowarn", "-cp", classpath, "-d", str(classes), str(source)], timeout_s=120)


def ali_ons(*arguments: str, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run the ali-ons scenario and return the JSON objects it printed."""
    return json_lines(_run(["node", "ali-ons-peer.js", *arguments], cwd=node_peer(), timeout_s=timeout_s))


def ali_ons_consume(namesrv: str, topic: str, group: str, tag: str, count: int) -> list[dict[str, Any]]:
    """Run the ali-ons consumer until it has so many messages, and return the JSON objects it printed."""
    command = ["node", "ali-ons-consume.js", namesrv, topic, group, tag, str(count)]
    return json_lines(_run(command, cwd=node_peer(), timeout_s=120))


def ali_ons_features(namesrv: str, topic: str, group: str, *, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Run the ali-ons program of delays and retries and return the JSON objects it printed."""
    command = ["node", "ali-ons-features.js", namesrv, topic, group]
    return json_lines(_run(command, cwd=node_peer(), timeout_s=timeout_s))


@contextlib.contextmanager
def java_broker(
    folder: Path,
    store: Path,
    settings: dict[str, str],
    *,
    fully_compiled: bool = False,
    end: signal.Signals = signal.SIGKILL,
) -> Iterator[tuple[str, str]]:
    """Run Apache RocketMQ's name server and broker on `store`; yield (name server address, broker address).

    The broker ends with the signal `end`. On SIGTERM, it waits more than ten seconds for its threads.
    """
    java = JAVA_MEASURED if fully_compiled else JAVA
    classpath = java_classpath()
    namesrv_port = free_base(_PORTS, lambda base: range(base, base + 5))
    broker_port = namesrv_port + 3  # Its fast port lies 2 below, its HA port 1 above.
    (folder / "namesrv.conf").write_text(f"listenPort={namesrv_port}\nbindAddress=127.0.0.1\n")
    broker = {
        "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0", "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1", "namesrvAddr": f"127.0.0.1:{namesrv_port}", "listenPort": str(broker_port),
        "haListenPort": str(broker_port + 1), "storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog"),
        "fileReservedTime": "8760", "diskMaxUsedSpaceRatio": "95", "maxTransferCountOnMessageInMemory": "33",
    }  # fmt: skip
    (folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in (broker | settings).items()))
    with contextlib.ExitStack() as stack:
        for main, file, port in (
            ("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf", namesrv_port),
            ("org.apache.rocketmq.broker.BrokerStartup", "broker.conf", broker_port),
        ):
            command = [*java, f"-Duser.home={folder}", "-cp", classpath, main, "-c", str(folder / file)]
            stack.enter_context(
                _running(command, folder / f"{file}.log", port, end if port == broker_port else signal.SIGKILL)
            )
        yield f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}"


@contextlib.contextmanager
def _running(command: list[str], log: Path, port: int, end: signal.Signals) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | _java_home())
    try:
        _wait_for_port(process, port, log)
        yield
    finally:
        process.send_signal(end)
        process.wait(60)


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"the Java peer does not answer on port {port}:\n{log.read_text(errors='replace')[-4000:]}")


def _java_home() -> dict[str, str]:
    home = CACHE / "java" / "home"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    return {"ROCKETMQ_HOME": str(home)}


def _run(
    command: list[str],
    *,
    cwd: Path | None = None,
    timeout_s: float,
    environment: dict[str, str] | None = None,
    typed: str = "",
) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | (environment or {}),
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)} ended {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def json_lines(output: str) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines; Java's logging may print other lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
