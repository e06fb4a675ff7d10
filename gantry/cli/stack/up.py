"""`gantry up`: a whole stack on one machine, supervised until a signal arrives."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from gantry.cli.launch import NEEDED_FOR_REPORTS
from gantry.cli.stack.childlogs import ChildLog
from gantry.cli.stack.layout import BROKER_TOML, FIRST_USER, Layout, Service, StackOptions
from gantry.cli.stack.postgres import EmbeddedPostgres, embedded_postgres, identity, server_environment
from gantry.cli.stack.preflight import check_disk, check_ports
from gantry.cli.stack.stackfile import stack_content, write_stack
from gantry.cli.stack.supervisor import ProcessSpec, Supervisor, ready_file_says
from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import EXIT_LOST, AlreadyLockedError, StartupError
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.settings import refuse_unknown_environment
from gantry.runtime.tasks import TaskScope

MIGRATE_AGAIN_S = 10.0
MIGRATE_TIMEOUT_S = 90.0
KEY_TIMEOUT_S = 5.0
KEY_POLL_S = 0.1
INTERRUPTS_UNTIL_KILLED = 2
# The gateway stops first, so that no new requests arrive. The scheduler stops with it, while its jobs can still read
# from brokers and record their results. Name servers stop after brokers, which unregister from them.
STOP_RANKS = {"services.gateway": 0, "spark.scheduler": 0, "services.broker": 1, "services.namesrv": 2, "postgres": 3}
# A broker that starts without its store creates an empty one, which would assign the same offsets again.
LOST_ADVICE = (
    "The other services continue. Find out what happened to the folder of the broker and restore it; "
    "then stop `gantry up` and start it again"
)
# -P: a folder named `services` in the current folder must not shadow our package.
PYTHON = (sys.executable, "-P", "-m")


def run_up(options: StackOptions, *, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run a stack until SIGTERM, SIGINT or SIGHUP. Return the exit code. Raises StartupError."""
    options.check()
    refuse_unknown_environment(environment)
    if environment.get("GANTRY_CONFIG"):
        raise StartupError(
            f"GANTRY_CONFIG is for one service; write {options.data}/namesrv.toml, broker.toml, gateway.toml or scheduler.toml instead"
        )
    layout = Layout(options)
    files = OsFileSystem()
    _make_folders(layout)
    with ExitStack() as locks:
        _lock(layout, files, locks)
        layout.stack_file.unlink(missing_ok=True)
        check_ports(layout.services(), options.host)
        check_disk(layout, files, say)
        _write_settings(layout)
        return asyncio.run(_Stack(options, layout, environment, say).run())


class _Stack:
    def __init__(
        self, options: StackOptions, layout: Layout, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._layout = layout
        self._say = say
        self._postgres: EmbeddedPostgres | None = None
        self._environment = {
            key: value for key, value in environment.items() if key not in ("GANTRY_DATA", "GANTRY_DATABASE_URL")
        }
        self._is_ready = False
        self._is_stopping = False
        self._interrupts = 0
        self._key = ""
        # The gateway ran before, so it created an admin key, but the file with the key is missing.
        self._had_password = layout.password_file.exists()
        self._is_key_lost = layout.gateway_data.exists() and not layout.key_file.exists()

    @property
    def _database_url(self) -> str:
        if self._postgres is not None:
            return self._postgres.url
        assert self._options.database_url is not None
        return self._options.database_url

    async def run(self) -> int:
        stop = asyncio.Event()
        async with TaskScope("up") as scope:
            self._scope = scope
            self._supervisor = Supervisor(scope, SystemClock(), say=self._say, on_change=self._write_stack)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(number, self._on_signal, number, stop)
            try:
                await self._run_until(stop)
            finally:
                self._layout.stack_file.unlink(missing_ok=True)
                await self._supervisor.stop()
                if self._postgres is not None:
                    self._postgres.remove_socket_folder()
        self._say("all services have stopped")
        return 0

    async def _run_until(self, stop: asyncio.Event) -> None:
        starting = asyncio.ensure_future(self._start())
        stopping = asyncio.ensure_future(stop.wait())
        failing = asyncio.ensure_future(self._scope.wait_for_failure())
        try:
            await asyncio.wait({starting, stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not stopping.done():
                starting.result()
                self._print_welcome()
                await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
        finally:
            for task in (starting, stopping, failing):
                task.cancel()
            await asyncio.gather(starting, stopping, failing, return_exceptions=True)

    def _on_signal(self, number: signal.Signals, stop: asyncio.Event) -> None:
        # Only a second SIGINT kills: an init system that sends SIGTERM twice still wants an orderly stop.
        self._interrupts += number == signal.SIGINT
        if number == signal.SIGINT and self._interrupts >= INTERRUPTS_UNTIL_KILLED:
            self._say("killing all services")
            self._supervisor.kill()
        elif number == signal.SIGINT:
            self._say("stopping (press Ctrl-C again to kill all services)")
        elif not self._is_stopping:
            self._say("stopping")
        self._is_stopping = True
        stop.set()

    async def _start(self) -> None:
        self._supervisor.begin()
        database = self._scope.spawn("start-database", self._start_database())
        await self._supervisor.start(self._spec(self._layout.namesrv()))
        brokers = [self._layout.broker(index) for index in range(self._options.brokers)]
        await self._supervisor.start(*map(self._spec, brokers))
        await database
        # Started concurrently: the scheduler is ready before the gateway, and connects to the database in its own time.
        await self._supervisor.start(*map(self._spec, (self._layout.gateway(), *self._scheduler())))
        # The gateway is ready before it has created the first key. Without a database it can't create one yet.
        if not await self._wait_for_key(KEY_TIMEOUT_S):
            self._scope.spawn("await-key", self._show_key_when_ready())
        self._is_ready = True
        self._write_stack()

    def _scheduler(self) -> list[Service]:
        if not self._options.scheduler:
            return []
        # find_spec imports nothing (see launch.py).
        if find_spec("spark") is None or any(find_spec(module) is None for module in NEEDED_FOR_REPORTS):
            self._say("lag and backlog reports are not installed: pip install 'gantry-mq[server,spark]'")
            return []
        return [self._layout.scheduler()]

    async def _start_database(self) -> None:
        if self._options.database_url is None:
            self._postgres = await self._scope.in_thread("files", embedded_postgres, self._layout.data)
            await self._scope.in_thread("files", self._postgres.prepare)
            await self._supervisor.start(self._postgres_spec(self._postgres))
        failure = await self._migrate()
        if failure is None:
            return
        if self._postgres is not None:
            raise StartupError(failure)
        # Messages can be sent and consumed without the database, and an external server may start later.
        self._say(f"{failure}; starting without the database, next attempt in {MIGRATE_AGAIN_S:g} s")
        self._scope.spawn("migrate", self._migrate_until_done())

    async def _wait_for_key(self, timeout_s: float) -> bool:
        for _ in range(int(timeout_s / KEY_POLL_S)):
            if self._api_key():
                return True
            await asyncio.sleep(KEY_POLL_S)
        return False

    async def _show_key_when_ready(self) -> None:
        while not await self._wait_for_key(KEY_TIMEOUT_S):
            pass
        self._write_stack()
        self._say(f"API key: {self._api_key()}   (kept in {self._layout.key_file})")
        self._report_replaced_key()

    async def _migrate_until_done(self) -> None:
        done = False
        while not done:
            await asyncio.sleep(MIGRATE_AGAIN_S)
            done = await self._migrate() is None
        self._say("the database is connected and migrated")

    async def _migrate(self) -> str | None:
        """Migrate the database to this version's schema. Return the reason of a failure, or None."""
        process = await asyncio.create_subprocess_exec(
            *PYTHON,
            "services.gateway.db",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**self._environment, "GANTRY_DATABASE_URL": self._database_url},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(MIGRATE_TIMEOUT_S):
                _, stderr = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"migrate: no answer within {MIGRATE_TIMEOUT_S:g} s"
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode == 0:
            return None
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"migrate: ended with code {process.returncode}"

    def _spec(self, service: Service) -> ProcessSpec:
        environment = dict(self._environment)
        if service.module in ("services.gateway", "spark.scheduler"):
            environment["GANTRY_DATABASE_URL"] = self._database_url
        if service.module == "services.gateway":
            environment.setdefault("GANTRY_GATEWAY_FIRST_KEY_FILE", str(self._layout.key_file))
            environment.setdefault("GANTRY_GATEWAY_FIRST_PASSWORD_FILE", str(self._layout.password_file))
            # No load balancer is in front of the gateway, so none needs time to notice that it stops.
            environment.setdefault("GANTRY_GATEWAY_DRAIN_MS", "0")
            environment.setdefault("GANTRY_GATEWAY_KEEP_FIRST_KEY_FILE", "true")
        return ProcessSpec(
            name=service.name,
            command=(*PYTHON, service.module, *service.arguments),
            environment=environment,
            is_ready=ready_file_says(service.ready_file),
            log=ChildLog(self._layout.logs / f"{service.name}.log"),
            before_start=lambda: service.ready_file.unlink(missing_ok=True),
            stop_rank=STOP_RANKS[service.module],
            # The gateway gives requests in flight 8 s to finish (its stop_timeout_ms).
            stop_timeout_s=10.0 if service.module == "services.gateway" else 8.0,
            final_codes={EXIT_LOST: LOST_ADVICE},
        )

    def _postgres_spec(self, postgres: EmbeddedPostgres) -> ProcessSpec:
        return ProcessSpec(
            name="postgres",
            command=postgres.command,
            environment=server_environment(),
            is_ready=postgres.is_ready,
            log=ChildLog(self._layout.logs / "postgres.log"),
            before_start=postgres.clear_leftovers,
            stop_rank=STOP_RANKS["postgres"],
            # Fast shutdown: Postgres ends the sessions and writes a checkpoint.
            stop_signal=signal.SIGINT,
            # Immediate shutdown: Postgres ends its children, and recovers at the next start.
            death_signal=signal.SIGQUIT,
            identity=identity(postgres.user),
            folder="/",
        )

    def _write_stack(self) -> None:
        if self._is_ready and not self._is_stopping:
            content = stack_content(
                self._layout,
                api_key=self._api_key(),
                postgres=self._database_url,
                processes=self._supervisor.processes,
            )
            try:
                write_stack(self._layout.stack_file, content)
            except OSError as error:
                self._say(f"{self._layout.stack_file} can't be written: {error.strerror}")

    def _api_key(self) -> str:
        # The key stays valid if the file is removed meanwhile.
        with suppress(OSError):
            self._key = self._layout.key_file.read_text(encoding="utf-8").strip() or self._key
        return self._key

    def _print_welcome(self) -> None:
        self._say(greeting(self._layout, self._api_key(), self._first_password()))
        if self._api_key():
            self._report_replaced_key()

    def _first_password(self) -> str | None:
        """Return the password of the first user at the first start, which alone shows it."""
        if self._had_password:
            return None
        with suppress(OSError):
            return self._layout.password_file.read_text(encoding="utf-8").strip()
        return None

    def _report_replaced_key(self) -> None:
        if self._is_key_lost:
            self._say(
                f"{self._layout.key_file} was missing, so this API key is a new one with all rights; "
                "earlier keys stay valid (see gantry key list, gantry key revoke)"
            )


def greeting(layout: Layout, api_key: str, password: str | None = None) -> str:
    """Return the addresses of the stack and first steps for a newcomer, as lines to paste into a shell."""
    curl = f"curl -sS -H 'Authorization: Bearer {api_key}'"
    body = "-H 'Content-Type: application/json'"
    topic = f"{layout.http}/v1/topics/hello"
    return "\n".join(
        [
            "",
            f"Gantry is ready at {layout.http}",
            f"  API key       {api_key or 'none yet: the gateway creates it once the database answers'}   (kept in {layout.key_file})",
            f"  console       {layout.console}",
            f"  log-in        user {FIRST_USER}, password {password or 'as at the first start'}   (kept in {layout.password_file})",
            f"  name server   {', '.join(layout.namesrv_addresses)}",
            f"  logs          {layout.logs}",
            "  stop          Ctrl-C",
            "",
            "Create a topic, send a message, and read it back:",
            f"  {curl} -X PUT {body} -d '{{}}' {topic}",
            f'  {curl} {body} -d \'{{"body": "hello", "queue": {{"broker": "broker-a", "id": 0}}}}\' {topic}/messages',
            f"  {curl} {shlex.quote(f'{topic}/queues/broker-a/0/messages?offset=0')}",
            "",
        ]
    )


def _make_folders(layout: Layout) -> None:
    try:
        # Mode 0711: under root, Postgres runs as another user that must enter the folder, but need not list it.
        layout.data.mkdir(mode=0o711, parents=True, exist_ok=True)
        for folder in (layout.logs, layout.ready):
            folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise StartupError(f"{layout.data} is a file: choose another --data") from None
    except OSError as error:
        raise StartupError(f"{layout.data} can't be created: {error.strerror}: choose another --data") from None


def _lock(layout: Layout, files: FileSystem, locks: ExitStack) -> None:
    """Lock the data folder and its lock file: the file may be removed by hand, but earlier releases lock only the file."""
    for path, take in ((layout.data, files.lock_dir), (layout.lock_file, files.lock)):
        try:
            locks.callback(take(str(path)).release)
        except AlreadyLockedError:
            raise StartupError(_already_running(layout)) from None
        except OSError as error:
            raise StartupError(f"{path}: {error.strerror}") from None


def _write_settings(layout: Layout) -> None:
    try:
        if not layout.broker_toml.exists():
            layout.broker_toml.write_text(BROKER_TOML)
    except OSError as error:
        raise StartupError(f"{layout.broker_toml} can't be written: {error.strerror}: choose another --data") from None


def _already_running(layout: Layout) -> str:
    return f"a stack already runs on {layout.data} (see {layout.stack_file}): stop it, or choose another --data"


def data_folder(text: str) -> Path:
    """Return a data folder as an absolute path, because children run in other folders."""
    return Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111 - resolve() would follow links.
