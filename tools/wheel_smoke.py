"""Builds the wheel, installs it into an empty environment, starts a stack with it, sends a message and reads it back.

Run it as `python -m tools.wheel_smoke` (`make wheel-smoke`). All files are in a temporary folder outside the
repository, so that the programs use the installed packages. The folder is removed at the end.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SHIPPED = frozenset({"gantry", "services", "spark"})
CONSOLE = "services/gateway/console/index.html"
BODY = "hello from the wheel"
INSTALL_TIMEOUT_S = 600
COMMAND_TIMEOUT_S = 60
SCRIPT_CHARACTERS_MIN = 1_000
READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 40
# High enough not to collide with a stack that the developer runs.
PORT_BASES = range(20_000, 50_000, 1_000)


def main() -> int:
    """Run all steps; return the exit code."""
    began = time.monotonic()
    # Postgres may run as another user, and this user has to enter the folder.
    folder = Path(tempfile.mkdtemp(prefix="gantry-wheel-"))
    folder.chmod(0o711)
    try:
        wheel = build(folder)
        print(f"built      {wheel.name}, {wheel.stat().st_size >> 10} KiB")
        gantry = install(wheel, folder / "venv")
        print(f"installed  {gantry}")
        with stack(gantry, folder / "data") as data:
            print(f"started    {', '.join(process['name'] for process in stack_file(data)['processes'])}")
            open_console(data)
            print("opened     the console")
            send_and_read(gantry, data)
            print(f"read back  {BODY!r}")
    except (Failure, subprocess.TimeoutExpired) as error:
        print(f"wheel-smoke: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"the wheel works ({time.monotonic() - began:.0f} s)")
    return 0


class Failure(Exception):  # noqa: N818 - a message for a person, not an error for a program.
    """A step failed."""


def build(folder: Path) -> Path:
    """Build the wheel and check its content."""
    run(sys.executable, "-m", "tools.console", "build")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "dist"), str(ROOT))
    (wheel,) = (folder / "dist").glob("gantry_mq-*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    if CONSOLE not in names:
        raise Failure(f"{wheel.name} lacks {CONSOLE}, the browser console")
    others = {name.partition("/")[0] for name in names if ".dist-info/" not in name} - SHIPPED
    if others:
        raise Failure(
            f"{wheel.name} contains {', '.join(sorted(others))}; only {', '.join(sorted(SHIPPED))} belong in it"
        )
    return wheel


def install(wheel: Path, venv: Path) -> Path:
    """Install the wheel with its extra `server` into an empty environment; return the path of its `gantry`."""
    run(sys.executable, "-m", "venv", str(venv))
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", str(CONSTRAINTS), f"{wheel}[server]", cwd=venv)
    return venv / "bin" / "gantry"


@contextmanager
def stack(gantry: Path, data: Path) -> Iterator[Path]:
    """Run `gantry up` with one broker until the block ends."""
    log = data.parent / "up.log"
    base = random.choice(PORT_BASES)  # noqa: S311 - a random range of ports is not a secret.
    command = [str(gantry), "up", "--data", str(data), "--brokers", "1", "--port-base", str(base)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=data.parent, env=environment())
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (data / "stack.json").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"gantry up did not become ready:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield data
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_TIMEOUT_S) != 0:
            raise Failure(f"gantry up ended with {process.returncode}:\n{log.read_text(errors='replace')}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()  # The children of the process end with it.
                process.wait()


def stack_file(data: Path) -> dict[str, Any]:
    """Return the content of the stack's file."""
    content: dict[str, Any] = json.loads((data / "stack.json").read_text())
    return content


def open_console(data: Path) -> None:
    """Read the console's page and the script that it names, as a browser does."""
    address = stack_file(data)["console"]["url"]
    page = read_page(address)
    script = re.search(r'src="(/console/assets/[^"]+\.js)"', page)
    if script is None or len(read_page(urljoin(address, script[1]))) < SCRIPT_CHARACTERS_MIN:
        raise Failure(f"{address} is not the console: {page[:200]!r}")


def read_page(address: str) -> str:
    """Return the text at an address of this machine."""
    opener = build_opener(ProxyHandler({}))
    with opener.open(address, timeout=COMMAND_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def send_and_read(gantry: Path, data: Path) -> None:
    """Create a topic, send a message and read it back, only with the installed command line."""
    where = ("--data", str(data))
    run(str(gantry), "topic", "create", "WHEEL", "--queues", "1", *where, cwd=data)
    sent = json.loads(run(str(gantry), "message", "send", "WHEEL", BODY, "--json", *where, cwd=data))
    body = run(str(gantry), "message", "get", sent["stored_id"], "--body", *where, cwd=data)
    if sent["outcome"] != "stored" or body.strip() != BODY:
        raise Failure(f"sent {BODY!r}, got the reply {sent}, read {body!r}")


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a program that must succeed; return its output."""
    timeout_s = INSTALL_TIMEOUT_S if "pip" in command or "tools.console" in command else COMMAND_TIMEOUT_S
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment without the developer's own settings, and with the pinned versions for building the wheel."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GANTRY_", "PYTHON"))}
    return {**clean, "PIP_CONSTRAINT": str(CONSTRAINTS)}


if __name__ == "__main__":
    sys.exit(main())
