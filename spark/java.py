"""Finds a Java that can start Spark: version 17 or newer, with all modules of a full JDK or JRE.

Spark's start script requires `jdk.incubator.vector`. The trimmed runtimes in wheels do not have this module, and their
JVM ends without a useful message. So this module asks each Java for its version and modules, and takes the first
suitable one: JAVA_HOME, then `java` on PATH, then the installed ones below /usr/lib/jvm. The oldest of those is first,
because Spark is tested with long-term versions before the newest ones.
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem

JAVA_VERSION_MIN: Final = 17
"""The oldest version that Spark 4 supports."""
MODULE_NEEDED: Final = "jdk.incubator.vector"
INSTALLED: Final = "/usr/lib/jvm"
ASK_TIMEOUT_S: Final = 30
"""The time limit for a JVM to print its version. A cold disk takes a few seconds."""
WHAT_TO_INSTALL: Final = (
    f"install a full Java {JAVA_VERSION_MIN} or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@21), or set JAVA_HOME to one"
)

_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_BUILD: Final = re.compile(r"^\s*java\.vm\.(?:name|version) = (.+?)\s*$", re.MULTILINE)
_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)


class JavaNotFoundError(StartupError):
    """This machine has no Java that can start Spark. The message says what was tried and what to install.

    The program that starts a report shows the message. Everything else works without Java.
    """


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can start Spark."""

    home: str
    """The value for JAVA_HOME."""
    version: int
    build: str = field(default="", compare=False)
    """The full name and version of the JVM, as it prints them."""


def find_java(
    environment: Mapping[str, str],
    *,
    files: FileSystem | None = None,
    ask: Callable[[str], str] | None = None,
) -> Java:
    """Return the Java to start Spark with.

    Args:
        environment: The environment, usually os.environ; the function reads JAVA_HOME and PATH.
        files: The file system; by default that of the operating system.
        ask: Runs the `java` program at a path and returns its output about version and modules; raises OSError if the
            program does not run.

    Raises:
        JavaNotFoundError: No Java is suitable.
    """
    files = OsFileSystem() if files is None else files
    ask = ask_java if ask is None else ask
    tried: dict[str, str] = {}
    installed: list[Java] = []
    for program, is_chosen in _programs(environment, files):
        if program in tried:
            continue
        judged = _check_java(program, ask)
        if isinstance(judged, Java):
            if is_chosen:
                return judged
            installed.append(judged)
        tried[program] = judged if isinstance(judged, str) else "will do"
    if installed:
        return min(installed, key=lambda java: java.version)
    reasons = "; ".join(f"{program} {why}" for program, why in tried.items()) or "no java was found"
    raise JavaNotFoundError(f"Spark needs Java: {WHAT_TO_INSTALL} ({reasons})")


def ask_java(program: str) -> str:
    """Return the output of a `java` about its version, home and modules. Raises OSError if it does not run."""
    command = [program, "-XshowSettings:properties", "--list-modules"]
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own java.
            command, capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"gave no answer within {ASK_TIMEOUT_S} s") from None
    return ran.stdout + ran.stderr


def _is_file(files: FileSystem, path: str) -> bool:
    try:
        return files.exists(path) and not files.is_dir(path)
    except OSError:
        return False  # For example, this user may not search the folder.


def _programs(environment: Mapping[str, str], files: FileSystem) -> Iterator[tuple[str, bool]]:
    """Yield the path of each java, and whether the user chose it by JAVA_HOME or PATH."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"{home.rstrip('/')}/bin/java", True
    for folder in environment.get("PATH", "").split(":"):
        program = f"{folder.rstrip('/')}/java"
        if folder and _is_file(files, program):
            yield program, True
    if files.is_dir(INSTALLED):
        for name in sorted(files.list_dir(INSTALLED)):
            program = f"{INSTALLED}/{name}/bin/java"
            if _is_file(files, program):
                yield program, False


def _check_java(program: str, ask: Callable[[str], str]) -> Java | str:
    """Return the Java, or the reason why it is not suitable."""
    try:
        output = ask(program)
    except OSError as error:
        return f"doesn't run: {error.strerror or error}"
    home, version = _HOME.search(output), _VERSION.search(output)
    if home is None or version is None:
        return "doesn't say its version"
    if int(version[1]) < JAVA_VERSION_MIN:
        return f"is Java {version[1]}"
    if not re.search(rf"^{re.escape(MODULE_NEEDED)}(@|$)", output, re.MULTILINE):
        return f"has no module {MODULE_NEEDED} (a trimmed runtime)"
    return Java(home[1], int(version[1]), " ".join(_BUILD.findall(output)))
