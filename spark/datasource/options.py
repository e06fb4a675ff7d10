"""The options of the data source, parsed and typed.

The option `kind` chooses the rows: a group's offsets in each queue (`offsets`), its first unconsumed message in each
queue (`heads`), its clients on each broker (`groups`), these three read at the same time (`survey`), each unconsumed
message (`backlog`), or the messages of topics (`messages`). `docs/formats/spark.md` describes all kinds and options.

An unknown option, an invalid value, and an option that the kind does not use are rejected; the error names the option.
Spark passes the values as texts, and ignores the case of the names.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NoReturn

from pyspark.sql.types import StructType

from gantry.model.errors import InvalidNameError, InvalidValueError
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from spark.access import ACCESS_FORM, split_access
from spark.datasource.schema import BY_KIND, FILTERED_MESSAGES

MAX_ROWS_PER_PARTITION: Final = 250_000
"""The default limit for the rows of one task: some seconds of work, and 20 MB of units."""
SQL_FILTERS_MAX: Final = 100
"""The limit for the SQL92 expressions of one topic: each of them is evaluated for each message of the topic."""
SQL_CHARACTERS_MAX: Final = 1 << 20
"""The limit for the characters of all expressions together, which travel with each task."""
NUMBER_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19
_SHOWN_MAX: Final = 200

OFFSETS, HEADS, GROUPS, SURVEY = "offsets", "heads", "groups", "survey"
BACKLOG, MESSAGES = "backlog", "messages"
assert set(BY_KIND) == {OFFSETS, HEADS, GROUPS, SURVEY, BACKLOG, MESSAGES}


class OptionError(InvalidValueError):
    """An option can't be used. The message gives its name, its value (unless it is secret) and the reason."""


class PositionKind(enum.StrEnum):
    """The kinds of positions that `from` and `to` accept."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """One end of the range to read, in each queue.

    Attributes:
        where: The kind of the position.
        value: A queue offset for OFFSET, a store time in wall ms for TIME, 0 for EARLIEST and LATEST.
    """

    where: PositionKind
    value: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials for brokers that require them (RocketMQ's ACL); the option `access` has the form of ACCESS_FORM."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Options:
    """All options, parsed and checked; picklable, because each task gets them."""

    kind: str
    """A key of `schema.BY_KIND`."""
    namesrv: tuple[str, ...] = ()
    """Addresses of the name servers, `host:port`; empty if `path` is given."""
    path: str | None = None
    """The folder of a store to read without a broker."""
    topics: tuple[str, ...] | None = None
    """Topics to read; None for all."""
    groups: tuple[str, ...] | None = None
    """Consumer groups to read; None for all."""
    start: Position | None = None
    """Option `from`: the start of the range, inclusive; None for the start that the kind chooses."""
    end: Position | None = None
    """Option `to`: the end of the range, exclusive; None for the end that the kind chooses."""
    database: str | None = field(default=None, repr=False)
    """The URL of the database where the gateway stores subscriptions, `postgresql://…`; None to do without it."""
    access: Credentials | None = None
    max_rows_per_partition: int = MAX_ROWS_PER_PARTITION
    max_messages_per_trigger: int | None = None
    """The limit for one batch of a stream; None for no limit."""
    include_system: bool = False
    """Whether the brokers' own topics and groups are read, too. Those that `topics` or `groups` name always are."""
    pushdown: bool = False
    """Whether the filters of a query limit what is read; see pushdown.py."""
    fail_on_data_loss: bool = True
    """Whether the query fails if messages that it should read are gone; see dataloss.py."""
    sql_filters: Mapping[str, tuple[str, ...]] | None = None
    """SQL92 expressions by topic; each row says which of them accept its message. None: rows do not say it."""

    @property
    def schema(self) -> StructType:
        """The schema of the rows."""
        return BY_KIND[self.kind] if self.sql_filters is None else FILTERED_MESSAGES


# The options that each kind uses. All kinds use the common ones.
_COMMON: Final = frozenset(
    {"kind", "namesrv", "path", "database", "access", "includeSystem", "maxRowsPerPartition", "pushdown"}
)
_BY_KIND: Final[Mapping[str, frozenset[str]]] = {
    OFFSETS: _COMMON | {"topics", "groups"},
    HEADS: _COMMON | {"topics", "groups"},
    GROUPS: _COMMON | {"groups"},
    SURVEY: _COMMON | {"topics", "groups"},
    BACKLOG: _COMMON | {"topics", "groups", "from", "to"},
    MESSAGES: _COMMON | {"topics", "from", "to", "maxMessagesPerTrigger", "failOnDataLoss", "sqlFilters"},
}
KNOWN: Final = tuple(sorted(frozenset[str]().union(*_BY_KIND.values()), key=str.lower))
_BY_LOWER: Final = {name.lower(): name for name in KNOWN}

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/@]+):([0-9]{1,5})")
_SECRET = "(not shown)"  # noqa: S105 - the text that replaces a secret.


def read_options(given: Mapping[str, str]) -> Options:
    """Parse the options that Spark passes.

    Raises:
        OptionError: An option is unknown or invalid, or the kind does not use it. The error names the first one.
    """
    values: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is None:
            raise OptionError(key, value, f"is no option of this data source; known: {', '.join(KNOWN)}")
        values[name] = value
    kind = values.get("kind")
    if kind is None:
        _refuse("kind", None, f"is missing; one of {', '.join(_BY_KIND)}")
    if kind not in _BY_KIND:
        _refuse("kind", kind, f"is not one of {', '.join(_BY_KIND)}")
    for name, value in values.items():
        if name not in _BY_KIND[kind]:
            _refuse(name, value, f"is no option of kind {kind}")
    options = Options(
        kind=kind,
        namesrv=_addresses(values.get("namesrv")),
        path=_refuse_empty("path", values.get("path")),
        topics=_names("topics", values.get("topics"), _check_topic),
        groups=_names("groups", values.get("groups"), check_group),
        start=_position("from", values.get("from")),
        end=_position("to", values.get("to")),
        database=_database(values.get("database")),
        access=_credentials(values.get("access")),
        max_rows_per_partition=_number("maxRowsPerPartition", values.get("maxRowsPerPartition"))
        or MAX_ROWS_PER_PARTITION,
        max_messages_per_trigger=_number("maxMessagesPerTrigger", values.get("maxMessagesPerTrigger")),
        include_system=_parse_bool("includeSystem", values.get("includeSystem")),
        pushdown=_parse_bool("pushdown", values.get("pushdown")),
        fail_on_data_loss=_parse_bool("failOnDataLoss", values.get("failOnDataLoss"), default=True),
        sql_filters=_sql_filters(values.get("sqlFilters")),
    )
    _check_together(options, values)
    return options


def _check_together(options: Options, values: Mapping[str, str]) -> None:
    if options.path is None and not options.namesrv:
        _refuse("namesrv", None, "is missing; give namesrv or path")
    if options.path is not None:
        for name in ("namesrv", "access"):
            if name in values:
                _refuse(name, _shown(name, values[name]), "can't be combined with path")
    start, end = options.start, options.end
    if start is not None and end is not None and start.where == end.where and start.value >= end.value:
        _refuse("to", values["to"], f"is not after from, {values['from']!r}")


def _refuse_empty(name: str, text: str | None) -> str | None:
    """Return the text. Raises OptionError if it is given but blank."""
    if text is not None and not text.strip():
        _refuse(name, text, "is empty")
    return text


def _list(name: str, text: str) -> tuple[str, ...]:
    """Return the parts of a list that `,` or `;` separates, without repetitions."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.replace(";", ",").split(",") if part.strip()))
    if not parts:
        _refuse(name, text, "is an empty list")
    return parts


def _names(name: str, text: str | None, check: Callable[[str], None]) -> tuple[str, ...] | None:
    if text is None:
        return None
    parts = _list(name, text)
    for part in parts:
        try:
            check(part)
        except InvalidNameError as error:
            _refuse(name, part, error.reason)
    return parts


def _check_topic(name: str) -> None:
    check_topic(name, length_max=RETRY_TOPIC_LENGTH_MAX)


def _addresses(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    parts = _list("namesrv", text)
    for part in parts:
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match[2]) < 65_536:
            _refuse("namesrv", part, "is not host:port")
    return parts


def _position(name: str, text: str | None) -> Position | None:
    if text is None:
        return None
    text = text.strip()
    if text.lower() in (PositionKind.EARLIEST, PositionKind.LATEST):
        return Position(PositionKind(text.lower()))
    if text.isascii() and text.isdigit():
        if len(text) > _DIGITS_MAX or int(text) > NUMBER_MAX:
            _refuse(name, text, "is beyond any queue offset")
        return Position(PositionKind.OFFSET, int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _refuse(name, text, "is neither a queue offset, an ISO-8601 time, 'earliest' nor 'latest'")
    if moment.tzinfo is None:
        _refuse(name, text, "has no time zone; UTC is written with a Z at the end")
    # Stores have times in milliseconds. Round up, to the first millisecond that is not before the moment.
    return Position(PositionKind.TIME, -(-micros(moment) // 1_000))


def micros(moment: datetime) -> int:
    """Return a moment as µs since 1970 UTC, without rounding. The moment must have a time zone."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _database(text: str | None) -> str | None:
    if text is None:
        return None
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("postgresql+psycopg", "postgresql", "postgres"):
        _refuse("database", _SECRET, "does not start with postgresql://")
    return f"postgresql://{rest}"


def _credentials(text: str | None) -> Credentials | None:
    if text is None:
        return None
    parts = split_access(text)
    if parts is None:
        _refuse("access", _SECRET, ACCESS_FORM)
    return Credentials(*parts)


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX and 0 < int(digits) <= NUMBER_MAX):
        _refuse(name, text, "is not a whole number above 0")
    return int(digits)


def _parse_bool(name: str, text: str | None, *, default: bool = False) -> bool:
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        _refuse(name, text, "is neither true nor false")
    return text.lower() == "true"


def _sql_filters(text: str | None) -> dict[str, tuple[str, ...]] | None:
    if text is None:
        return None
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(listed, list) for listed in given.values()):
        _refuse("sqlFilters", text[:_SHOWN_MAX], 'is no JSON object of the form {"topic": ["expression", …]}')
    for topic, listed in given.items():
        if len(listed) > SQL_FILTERS_MAX:
            _refuse("sqlFilters", topic, f"has {len(listed):,} expressions; {SQL_FILTERS_MAX} are allowed for a topic")
        for number, expression in enumerate(listed):
            reason = "is no text" if not isinstance(expression, str) else sql_error(expression)
            if reason is not None:
                _refuse("sqlFilters", f"{topic}[{number}]", reason)
    characters = sum(len(expression) for listed in given.values() for expression in listed)
    if characters > SQL_CHARACTERS_MAX:
        _refuse("sqlFilters", text[:_SHOWN_MAX], f"has {characters:,} characters; {SQL_CHARACTERS_MAX:,} are allowed")
    return {topic: tuple(listed) for topic, listed in given.items()}


def sql_error(expression: str) -> str | None:
    """Return the reason why an SQL92 expression is invalid; None if it is valid."""
    # The parser takes as long to load as many a query takes to run, and few queries need it.
    from gantry.sqlfilter import SqlError, SqlFilter  # noqa: PLC0415

    try:
        SqlFilter(expression)
    except SqlError as error:
        return str(error)
    return None


def _shown(name: str, value: str) -> str:
    return _SECRET if name in ("access", "database") else value


def _refuse(name: str, value: str | None, reason: str) -> NoReturn:
    raise OptionError(name, value, reason)
