"""A real gateway beside that of a stack: it has the same name servers and the same Postgres, and its own data folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from tests.support.ports import free_port
from tests.support.stack import Stack, environment


class GatewayProcess:
    """A gateway that tests may kill and start again; it keeps its port and its folder."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def peak_mib(self) -> int:
        """Return the largest memory of the process so far, in MiB."""
        assert self._process is not None, "started first"
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10

    def start(self, *, with_database: bool = True) -> None:
        """Start it and wait until it is ready."""
        self._folder.mkdir(exist_ok=True)
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "services.gateway", "--listen", f"127.0.0.1:{self._port}"]
        command += ["--name", self._folder.name, "--namesrv", ";".join(self._stack.facts["namesrv"])]
        command += ["--data", str(self._folder), "--ready-file", str(ready)]
        variables = environment({"GANTRY_DATABASE_URL": self._stack.facts["postgres"]} if with_database else {})
        self._process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
        self._stack.wait_for(ready.exists, "and its other gateway to be ready")
        assert json.loads(ready.read_bytes())["url"] == self.url

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self._stack.facts['api_key']}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=40, trust_env=False)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
