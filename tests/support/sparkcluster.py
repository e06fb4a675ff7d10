"""A Spark cluster on this machine: a master and a worker of Spark's own, as docker-compose.yml starts them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyspark

from gantry.cli.stack.processes import die_with_parent
from spark.java import find_java
from tests.support.stack import environment

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
DEPLOY = "org.apache.spark.deploy"
LOOPBACK = "127.0.0.1"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: it compiles in one quick step and collects garbage in one thread."""


class Cluster:
    """A master and a worker with two cores that run until the block ends, and the settings of jobs for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self.master = ""
        conf = folder / "conf"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text(
            f"spark.driver.defaultJavaOptions {QUICK}\nspark.executor.defaultJavaOptions {QUICK}\n"
        )
        # For the process that starts a job: it and the executors that connect back use this address.
        self.environment = {
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": str(python_without_us(folder)),
        }

    @contextlib.contextmanager
    def running(self) -> Iterator["Cluster"]:
        with contextlib.ExitStack() as stack:
            master = ["master.Master", "--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
            rest = {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
            match = stack.enter_context(self._daemon("master", master, rest, r"Starting Spark master at (\S+)"))
            self.master = match[1]
            worker = ["worker.Worker", "--host", LOOPBACK, "--cores", "2", "--memory", "1g", "--webui-port", "0"]
            # A time zone far from UTC, and a folder without our code.
            elsewhere = {"TZ": "Asia/Tokyo", "SPARK_WORKER_DIR": str(self._folder / "work")}
            ready = r"Successfully registered with master"
            stack.enter_context(self._daemon("worker", [*worker, self.master], elsewhere, ready))
            yield self

    @contextlib.contextmanager
    def _daemon(self, name: str, command: list[str], extra: Mapping[str, str], ready: str) -> Iterator[re.Match[str]]:
        own = {"JAVA_HOME": find_java(os.environ).home, "SPARK_HOME": str(self._home), "SPARK_DAEMON_MEMORY": "256m"}
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self._home / "bin" / "spark-class", f"{DEPLOY}.{command[0]}", *command[1:]],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment({**own, "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_JAVA_OPTS": QUICK, **extra}),
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - it only asks the kernel.
            )
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while (match := re.search(ready, log.read_text())) is None:
                assert process.poll() is None, f"the {name} ended: {log.read_text()}"
                assert time.monotonic() < deadline, f"the {name} is not ready: {log.read_text()}"
                time.sleep(0.1)
            yield match
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)

    def applications(self, name: str) -> list[str]:
        """Return the logs of the first executor of each application with a name; a log begins with the command line."""
        log = (self._folder / "master.log").read_text()
        ids = re.findall(rf"Registered app {re.escape(name)} with ID (\S+)", log)
        return [(self._folder / "work" / one / "0" / "stderr").read_text() for one in ids]

    def packages_were_shipped(self) -> bool:
        """Return whether a worker received our code."""
        return any((self._folder / "work").glob("app-*/*/gantry-code.zip"))


def python_without_us(folder: Path) -> Path:
    """Make a Python that has gantry's dependencies but not gantry, as on the workers of a user's cluster."""
    home = folder / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (packages,) = home.glob("lib/python*/site-packages")
    # Packages are found in this folder, but its .pth files are not read, so that an editable install stays out.
    (packages / "others.pth").write_text(f"{Path(msgspec.__file__).parent.parent}\n")
    return home / "bin" / "python"
