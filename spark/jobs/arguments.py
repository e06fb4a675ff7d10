"""The command line of jobs: the arguments that all jobs share, and the rules for missing ones.

The name servers come from `--namesrv`, then from the stack's file. The database comes from `--database`, then from
GANTRY_DATABASE_URL, then from the stack's file. The stack is that of `--data`, then of GANTRY_DATA.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from gantry.model.alert import AlertSettings
from gantry.runtime.errors import StartupError
from gantry.runtime.settings import refuse_unknown_environment
from spark.access import read_access_file
from spark.classarchive import AUTO
from spark.datasource.options import MESSAGES
from spark.master import LOCAL, UNDER_SUBMIT

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Window:
    """A period of time. The start is inclusive, the end exclusive."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a job, completed with values from the stack's file and the environment."""

    namesrv: tuple[str, ...]
    """Addresses of the name servers, `host:port`."""
    output: str
    """The folder, or the URI, for pages and Parquet files."""
    master: str | None
    """None under spark-submit, which has its own option for the master."""
    database: str | None = field(default=None, repr=False)
    """The URL of Postgres; None for a run without history."""
    run_id: UUID | None = None
    """The queued run to execute; None for a new run."""
    attempt: int | None = None
    """The attempt for which the scheduler has claimed the run. If a person gives only `--run`, the job claims the
    run."""
    groups: tuple[str, ...] = ()
    """The groups to report about; empty for all."""
    window: Window | None = None
    """The window of a new run; None if the job chooses it, or takes that of `run_id`."""
    access: str | None = field(default=None, repr=False)
    """Credentials for brokers, KEY:SECRET or KEY:SECRET:TOKEN."""
    as_json: bool = False
    class_archive: str = AUTO
    """The folder of the archive of Spark's classes, `auto` or `off`."""
    alerts: AlertSettings | None = None
    """None for a job whose verdicts open no alerts."""
    removed: tuple[tuple[str, UUID], ...] = ()
    """The job and the id of each run whose files this run removes. The scheduler names them if `output` is a URI."""


def make_parser(
    job: str,
    description: str,
    *,
    window_help: str = "",
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of a job's command line.

    Args:
        job: The name of the job.
        description: The sentence at the top of `--help`.
        window_help: The meaning of `--from` and `--to` for this job.
        add_arguments: Adds the job's own arguments.
    """
    parser = argparse.ArgumentParser(prog=f"python -m spark.jobs.{job}", description=description)
    parser.add_argument(
        "--data", metavar="DIR", help="folder of a stack of `gantry up`; gives the values of the next options"
    )
    parser.add_argument("--namesrv", metavar="A;B", help="addresses of the name servers; default 127.0.0.1:9876")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="postgresql://…; or GANTRY_DATABASE_URL; without a database there is no history",
    )
    parser.add_argument(
        "--master",
        metavar="MASTER",
        help=f"Spark's master: {LOCAL} (default), spark://HOST:7077, yarn, …; under spark-submit, use its own --master",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder of pages and Parquet files, or a URI that Spark can write to (s3a://…, hdfs://…); default DATA/reports",
    )
    _add_run_arguments(parser, window_help)
    parser.add_argument(
        "--access-file", metavar="FILE", help="credentials for brokers that require them, KEY:SECRET[:TOKEN]"
    )
    parser.add_argument(
        "--class-archive",
        metavar="DIR",
        default=AUTO,
        help="folder of the archive of Spark's classes; auto (default: the user's cache) or off",
    )
    parser.add_argument(
        "--remove", metavar="JOB/RUN", action="append", default=[], type=named_run, help=argparse.SUPPRESS
    )
    parser.add_argument("--json", action="store_true", help="print the rows")
    if add_arguments is not None:
        add_arguments(parser)
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser, window_help: str) -> None:
    parser.add_argument("--run", metavar="ID", type=UUID, help="a queued run to do; default: a new run")
    parser.add_argument("--attempt", metavar="N", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--group",
        metavar="G",
        action="append",
        default=[],
        help="only this group; may be repeated; the report is not kept in Postgres",
    )
    parser.add_argument(
        "--from",
        metavar="T",
        dest="start",
        type=moment,
        help=f"the start of the window, such as 2026-11-21T09:30:00Z: {window_help}",
    )
    parser.add_argument(
        "--to", metavar="T", dest="end", type=moment, help="the end of the window; each window is done once"
    )


def add_alert_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job whose verdicts open and resolve alerts."""
    defaults = AlertSettings()
    for name, default, effect in (
        ("raise", defaults.raise_after, "is opened or changed"),
        ("clear", defaults.clear_after, "is resolved"),
    ):
        parser.add_argument(
            f"--alert-{name}-after-ms",
            metavar="MS",
            type=milliseconds,
            default=default,
            help=f"for how long a verdict must hold before an alert {effect}",
        )


def milliseconds(text: str) -> timedelta:
    """Parse a whole number of milliseconds. Raises argparse.ArgumentTypeError, whose text the user sees."""
    try:
        length = timedelta(milliseconds=int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is too long") from None
    if length < timedelta(0):
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return length


def named_run(text: str) -> tuple[str, UUID]:
    """Parse JOB/RUN: the name of a job and the id of one of its runs. Raises ValueError."""
    job, _, run_id = text.partition("/")
    return job, UUID(run_id)


def moment(text: str) -> datetime:
    """Parse an ISO-8601 time that has a zone; return it in UTC.

    Raises:
        argparse.ArgumentTypeError: The text is not such a time. The user sees the text of the error.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an ISO-8601 time") from None
    if parsed.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone; UTC is written with a Z at the end")
    try:
        found = parsed.astimezone(UTC)
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is not in the years 1 to 9999 of UTC") from None
    if found < _EPOCH:
        raise argparse.ArgumentTypeError(f"{text!r} is before 1970, and no data is older")
    return found


def read_arguments(
    parser: argparse.ArgumentParser, given: Sequence[str] | None, environment: Mapping[str, str]
) -> Arguments:
    """Parse a command line. Missing values come from the environment or from the stack's file.

    Args:
        parser: The job's parser; see make_parser.
        given: The arguments; None for those of this process.
        environment: The environment variables.

    Raises:
        SystemExit: The command line is invalid; the code is 2.
        StartupError: There is no such stack, the environment has an unknown setting, or the access file has no
            credentials.
    """
    options = parser.parse_args(given)
    if (options.start is None) != (options.end is None):
        parser.error("--from and --to go together")
    if options.start is not None and options.start >= options.end:
        parser.error(f"--to: {options.end.isoformat()} is not after --from, {options.start.isoformat()}")
    if options.attempt is not None and options.run is None:
        parser.error("--attempt: says which attempt of --run")
    if options.run is not None and options.start is not None:
        parser.error("--from: a run has its window; leave --run or --from and --to away")
    is_submitted = UNDER_SUBMIT in environment
    if is_submitted and options.master is not None:
        parser.error("--master: say it to spark-submit, before the name of this program")
    if options.run is not None and options.group:
        parser.error("--group: a run is about all groups; leave --run or --group away")
    refuse_unknown_environment(environment)
    data = options.data or environment.get("GANTRY_DATA")
    namesrv, database = options.namesrv, options.database or environment.get("GANTRY_DATABASE_URL")
    if data is not None and (namesrv is None or not database):
        stack_namesrv, stack_database = _stack(data)
        namesrv, database = namesrv or stack_namesrv, database or stack_database
    if options.run is not None and not database:
        parser.error("--run: runs are kept in a database; say where: --database URL or --data DIR")
    return Arguments(
        namesrv=tuple(
            part.strip() for part in (namesrv or "127.0.0.1:9876").replace(";", ",").split(",") if part.strip()
        ),
        output=options.output or str(Path(data or ".gantry") / "reports"),
        master=options.master or (None if is_submitted else LOCAL),
        database=database or None,
        run_id=options.run,
        attempt=options.attempt,
        groups=tuple(options.group),
        window=None if options.start is None else Window(options.start, options.end),
        access=None if options.access_file is None else read_access_file(options.access_file, "--access-file"),
        as_json=options.json,
        class_archive=options.class_archive,
        alerts=_alerts(options),
        removed=tuple(options.remove),
    )


def _alerts(options: argparse.Namespace) -> AlertSettings | None:
    if not hasattr(options, "alert_raise_after_ms"):
        return None
    return AlertSettings(options.alert_raise_after_ms, options.alert_clear_after_ms)


def _stack(data: str) -> tuple[str, str]:
    # The scheduler names its servers and not a stack, so its workers never load the client of the REST API.
    from gantry.http.errors import NoStackError  # noqa: PLC0415
    from gantry.http.stack import read_stack  # noqa: PLC0415

    try:
        stack = read_stack(data)
    except NoStackError as error:
        raise StartupError(str(error)) from None
    return ";".join(stack.namesrv), stack.postgres


def source_options(arguments: Arguments, kind: str) -> dict[str, str]:
    """Return the options of the data source that follow from a job's arguments.

    The kind `messages` has no option `groups`, so a job that reads it must select the groups itself. With a database,
    that kind fails if a broker is away, but a report goes on without that broker.
    """
    options = {"namesrv": ";".join(arguments.namesrv)}
    if arguments.database is not None and kind != MESSAGES:
        options["database"] = arguments.database
    if arguments.access is not None:
        options["access"] = arguments.access
    if arguments.groups and kind != MESSAGES:
        options["groups"] = ",".join(arguments.groups)
    return options
