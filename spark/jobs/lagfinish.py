"""Completes a lag report once its verdicts are known: since when groups are behind, and who owns lagging queues.

Both are only looked up for groups that are not OK. Most reports have no such group, and then nothing is looked up.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, Final

import pyarrow as pa

from gantry.model.lag import severity
from gantry.model.laghistory import LagPoint, behind_since
from spark.datasource.brokers.owners import OWNERS, GroupOwners, owners_of_queue, owners_of_topic, read_owners
from spark.datasource.options import SURVEY, read_options
from spark.jobs.arguments import Arguments, source_options
from spark.laghistory import read_history
from spark.page import charted_pairs
from spark.postgres import connect
from spark.storedrows import Finished, StoredRows

HISTORY: Final = timedelta(hours=24)
HISTORY_PAIRS_MAX: Final = 20
"""The number of pairs (group, topic) whose past the page gets; it draws fewer."""
BEHIND_PAIRS_MAX: Final = 2_000
"""The number of pairs for which `behind_since` is looked up, the worst first. A thousand pairs take a second."""

TOPIC_COLUMNS: Final = (
    "level",
    "group",
    "topic",
    "broker",
    "as_of",
    "verdict",
    "lag_seconds",
    "lag_messages",
    "clients",
)
_COLUMNS: Final = {"behind_since": pa.timestamp("us", tz="UTC"), "owners": OWNERS}
_EARLIER: Final = (
    "SELECT group_name, topic, as_of, behind_since FROM report_lag_rows WHERE level = 'topic' AND behind_since IS NOT NULL"
    " AND run_id = (SELECT id FROM report_runs WHERE job = 'lag_report' AND status = 'succeeded'"
    " ORDER BY finished_at DESC LIMIT 1)"
)
EarlierStarts = Mapping[tuple[str, str], tuple[datetime, datetime]]
"""Group and topic → the time of the report before, and since when the group was behind then."""
Points = Mapping[tuple[str, str], Sequence[dict[str, Any]]]


def finish_lag(arguments: Arguments, rows: StoredRows, now: datetime) -> Finished:
    """Return the columns `behind_since` and `owners`, and the history of the groups that the page draws.

    If the start is unknown, it adds `behind_at_latest` to the row's evidence.

    Args:
        arguments: The arguments of the job.
        rows: The rows of the report.
        now: The time of the report, for a report without rows.

    Raises:
        psycopg.Error: The database does not answer.
    """
    found = _choose_groups(rows)
    charted = charted_pairs(found.topics, HISTORY_PAIRS_MAX)
    behind = (row for row in found.topics if row["verdict"] != "OK" and row["lag_messages"] != 0)
    pairs = {(row["group"], row["topic"]) for row in nsmallest(BEHIND_PAIRS_MAX, behind, key=_worst_first)}
    points = _lag_points(arguments, {*charted, *pairs}, found.until or now)
    owners = _owners(arguments, list(dict.fromkeys(group for group, _ in found.lagging)), found.brokers)
    earlier = _earlier_starts(arguments) if pairs else {}

    def fill(row: dict[str, Any]) -> None:
        row["behind_since"] = find_since(row, points, earlier) if (row["group"], row["topic"]) in pairs else None
        row["owners"] = _owners_of(row, owners) if (row["group"], row["topic"]) in found.lagging else None

    return Finished(_COLUMNS, fill, [point for pair in charted for point in points.get(pair, ())])


@dataclass(slots=True)
class _ChosenGroups:
    """The parts of a report that decide which groups are asked about.

    Attributes:
        until: The last moment that the report has read, which is the last point of a line; None without rows.
        topics: The rows of level "topic", with the columns TOPIC_COLUMNS.
        lagging: Groups and topics that have clients and rows that are not OK, in the order of the rows.
        brokers: The brokers of the rows.
    """

    until: datetime | None = None
    topics: list[dict[str, Any]] = field(default_factory=list)
    lagging: dict[tuple[str, str], None] = field(default_factory=dict)
    brokers: set[str] = field(default_factory=set)


def _choose_groups(rows: StoredRows) -> _ChosenGroups:
    found = _ChosenGroups()
    for row in rows.only(*TOPIC_COLUMNS):
        found.until = max(row["as_of"], found.until or row["as_of"])
        if row["level"] == "topic":
            found.topics.append(row)
        if row["broker"] is not None:
            found.brokers.add(row["broker"])
        if row["verdict"] != "OK" and _has_owners(row):
            found.lagging[row["group"], row["topic"]] = None
    return found


def _worst_first(row: Mapping[str, Any]) -> tuple[int, float]:
    return severity(row["verdict"]), -(row["lag_seconds"] or 0.0)


def _lag_points(arguments: Arguments, pairs: Iterable[tuple[str, str]], until: datetime) -> Points:
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    if arguments.database is None:
        return points
    with connect(arguments.database, application="gantry-history") as connection:
        for one in read_history(connection, since=until - HISTORY, until=until, pairs=sorted(pairs)):
            points.setdefault((one["group"], one["topic"]), []).append(one)
    return points


def _earlier_starts(arguments: Arguments) -> EarlierStarts:
    """Return the starts that the report before this one has found."""
    if arguments.database is None:
        return {}
    with connect(arguments.database, application="gantry-history") as connection:
        rows = connection.execute(_EARLIER).fetchall()
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}


def find_since(row: dict[str, Any], points: Points, earlier: EarlierStarts) -> datetime | None:
    """Return the time since which the group of a row is behind; None if it is unknown.

    If the start is unknown, it adds `behind_at_latest` to the row's evidence.

    Args:
        row: A row of the report.
        points: The past of each group and topic.
        earlier: The starts that the report before has found.
    """
    if row["level"] != "topic":
        return None
    past = [
        LagPoint(point["sampled_at"], point["lag"], point["behind_s"])
        for point in points.get((row["group"], row["topic"]), ())
        if point["sampled_at"] < row["as_of"]
    ]
    known_at, since = earlier.get((row["group"], row["topic"]), (None, None))
    if known_at is not None and since is not None and known_at < row["as_of"]:
        # That report was a look, too: the group was behind.
        insort(past, LagPoint(known_at, None, (known_at - since).total_seconds()), key=lambda point: point.at)
    found = behind_since([*past, LagPoint(row["as_of"], row["lag_messages"], row["lag_seconds"])])
    # The older samples are, the further apart they are kept. So the first look at the lag gives the best start.
    if known_at is not None and found.at_latest is not None and found.at_latest <= known_at < row["as_of"]:
        return since
    if found.at is None and found.at_latest is not None:
        row["evidence"] = {**(row["evidence"] or {}), "behind_at_latest": found.at_latest.isoformat()}
    return found.at


def _owners(arguments: Arguments, groups: Sequence[str], brokers: Collection[str]) -> Mapping[str, GroupOwners]:
    if not groups:
        return {}
    return read_owners(read_options({**source_options(arguments, SURVEY), "kind": SURVEY}), groups, brokers=brokers)


def _has_owners(row: Mapping[str, Any]) -> bool:
    return bool(row["lag_messages"] != 0 and row["clients"] != 0)


def _owners_of(row: Mapping[str, Any], found: Mapping[str, GroupOwners]) -> list[dict[str, Any]] | None:
    of_group = found.get(row["group"])
    if of_group is None or not _has_owners(row):
        return None
    if row["level"] == "topic":
        return owners_of_topic(of_group, row["topic"])
    return owners_of_queue(of_group, row["topic"], row["broker"], row["queue_id"])
