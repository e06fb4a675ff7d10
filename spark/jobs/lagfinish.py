"""What a lag report learns of groups once it knows which are behind: since when, and who owns the queues that lag.

Both are asked of few: of groups that are not OK. In most reports there is none, and nothing is asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from gantry.model.lag import severity
from gantry.model.lagpast import LagPoint, behind_since
from spark.datasource.options import SURVEY, read_options
from spark.datasource.owners import OWNERS, GroupOwners, owners_of_queue, owners_of_topic, read_owners
from spark.jobs.arguments import Arguments, source_options
from spark.jobs.running import Finished
from spark.laghistory import read_history
from spark.page import charted_pairs
from spark.postgres import connect

HISTORY: Final = timedelta(hours=24)
HISTORY_PAIRS_MAX: Final = 20
"""Of how many (group, topic) a page is given the past; it draws fewer."""
BEHIND_PAIRS_MAX: Final = 2_000
"""Of how many it is found out since when they are behind, the worst first: a second of work each thousand."""

_MOMENT: Final = pa.timestamp("us", tz="UTC")
Rows = Sequence[dict[str, Any]]


def finish_lag(arguments: Arguments, rows: Rows, now: datetime) -> Finished:
    """Return `behind_since` and `owners` of the rows, and the past of those that a page draws.

    Args:
        arguments: Of the job.
        rows: Of the report. To the evidence of those with an unknown beginning it adds `behind_at_latest`.
        now: For a report without rows.

    Raises:
        psycopg.Error: The database is away.
    """
    charted = charted_pairs(rows, HISTORY_PAIRS_MAX)
    behind = [row for row in rows if row["level"] == "topic" and row["verdict"] != "OK" and row["lag_messages"] != 0]
    behind.sort(key=lambda row: (severity(row["verdict"]), -(row["lag_seconds"] or 0.0)))
    pairs = {(row["group"], row["topic"]) for row in behind[:BEHIND_PAIRS_MAX]}
    points = _past(arguments, rows, {*charted, *pairs}, now)
    since = [_since(row, points) if (row["group"], row["topic"]) in pairs else None for row in rows]
    owners = _owners(arguments, rows)
    return Finished(
        {
            "behind_since": pa.array(since, _MOMENT),
            "owners": pa.array([_owners_of(row, owners) for row in rows], OWNERS),
        },
        [point for pair in charted for point in points.get(pair, ())],
    )


def _past(
    arguments: Arguments, rows: Rows, pairs: Iterable[tuple[str, str]], now: datetime
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    if arguments.database is None:
        return {}
    # Up to what the report itself has read, which is the last point of a line.
    until = max((row["as_of"] for row in rows), default=now)
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with connect(arguments.database, application="gantry-history") as connection:
        for one in read_history(connection, since=until - HISTORY, until=until, pairs=sorted(pairs)):
            points.setdefault((one["group"], one["topic"]), []).append(one)
    return points


def _since(row: dict[str, Any], points: Mapping[tuple[str, str], list[dict[str, Any]]]) -> datetime | None:
    if row["level"] != "topic":
        return None
    past = [
        LagPoint(point["sampled_at"], point["lag"], point["behind_s"])
        for point in points.get((row["group"], row["topic"]), ())
        if point["sampled_at"] < row["as_of"]
    ]
    found = behind_since([*past, LagPoint(row["as_of"], row["lag_messages"], row["lag_seconds"])])
    if found.at is None and found.at_latest is not None:
        row["evidence"] = {**(row["evidence"] or {}), "behind_at_latest": found.at_latest.isoformat()}
    return found.at


def _owners(arguments: Arguments, rows: Rows) -> Mapping[str, GroupOwners]:
    groups = dict.fromkeys(row["group"] for row in rows if _lags(row))
    if not groups:
        return {}
    return read_owners(read_options({**source_options(arguments, SURVEY), "kind": SURVEY}), list(groups))


def _lags(row: Mapping[str, Any]) -> bool:
    return bool(row["verdict"] != "OK" and row["lag_messages"] != 0 and row["clients"] != 0)


def _owners_of(row: Mapping[str, Any], found: Mapping[str, GroupOwners]) -> list[dict[str, Any]] | None:
    of_group = found.get(row["group"])
    if of_group is None or not _lags(row):
        return None
    if row["level"] == "topic":
        return owners_of_topic(of_group, row["topic"])
    return owners_of_queue(of_group, row["topic"], row["broker"], row["queue_id"])
