"""Since when groups are behind, from their past and from the report before; and who has their queues."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark.datasource.brokers.owners import Client, GroupOwners
from spark.jobs import lagfinish
from spark.jobs.arguments import make_parser, read_arguments
from spark.jobs.lagfinish import find_since, finish_lag
from spark.storedrows import StoredRows

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def since(
    as_of_s: float, *points: tuple[float, float | None], before: tuple[float, float] | None = None
) -> tuple[float | None, str | None]:
    """Return the start, as a second, and the evidence. `points` are pairs: second, and age of the oldest message."""
    row: dict[str, Any] = {"level": "topic", "group": "g", "topic": "t", "as_of": at(as_of_s), "evidence": None}
    row |= {"lag_messages": 5, "lag_seconds": as_of_s - 100}
    past = [{"sampled_at": at(second), "lag": 5, "behind_s": behind_s} for second, behind_s in points]
    earlier = {} if before is None else {("g", "t"): (at(before[0]), at(before[1]))}
    found = find_since(row, {("g", "t"): past}, earlier)
    evidence = row["evidence"] or {}
    return None if found is None else (found - NOON).total_seconds(), evidence.get("behind_at_latest")


def test_the_start_of_a_lag_is_the_same_in_later_reports() -> None:
    fine = (0, 0.0), (15, 2.0), (115, 5.0), (130, 30.0), (145, 45.0)
    first, _ = since(160, *fine)
    assert first == pytest.approx(110.0)
    # An hour later, the samples of that time are five minutes apart.
    coarse = (0, 0.0), (300, 180.0), (600, 480.0)
    assert since(700, *coarse)[0] == 120.0
    assert since(700, *coarse, before=(160, 110.0))[0] == 110.0
    # The samples of that time are gone, or a look is unknown.
    assert since(700, (600, 480.0), (660, 540.0), before=(605, 110.0))[0] == 110.0


def test_a_start_before_the_first_sample_that_was_kept_is_not_lost() -> None:
    # The group is new. The samples in between are not read, but the report before saw that it was behind.
    assert since(700, (300, 180.0), (600, 480.0), before=(160, 110.0))[0] == 110.0
    assert since(700, (600, 480.0), before=(160, 110.0)) == (None, at(600).isoformat()), "too long without a look"
    assert since(700, (200, None), (300, 180.0), (600, 480.0), before=(160, 110.0)) == (None, at(300).isoformat())


def test_a_group_that_kept_up_in_between_has_a_new_start() -> None:
    assert since(700, (0, 0.0), (300, 180.0), (500, 1.0), (600, 90.0), before=(160, 110.0))[0] == 510.0
    # After a time without looks, it may have kept up.
    found, evidence = since(1_700, (0, 0.0), (300, 180.0), (1_300, 1_180.0), (1_600, 1_480.0), before=(160, 110.0))
    assert (found, evidence) == (None, at(1_300).isoformat())


def test_queues_with_lag_have_owners_if_their_topic_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def found(options: object, groups: Sequence[str], *, brokers: Collection[str]) -> dict[str, GroupOwners]:
        asked.extend(groups)
        owner = Client("c1", "10.0.0.1", "", frozenset({("t", "b", 0), ("t", "b", 1), ("u", "b", 0)}))
        return {group: GroupOwners({"c1": owner}) for group in groups}

    monkeypatch.setattr(lagfinish, "read_owners", found)
    lag = {"lag_messages": 5, "lag_seconds": 2.0, "clients": 1, "as_of": NOON, "evidence": None}
    # The limit in messages is one of the topic, so each of its queues is OK by itself.
    topic = {**lag, "level": "topic", "group": "g", "topic": "t", "broker": None, "queue_id": None}
    queue = {**topic, "level": "queue", "verdict": "OK", "broker": "b"}
    rows = [
        {**topic, "verdict": "OVER_OBJECTIVE"},
        {**queue, "queue_id": 0}, {**queue, "queue_id": 1, "lag_messages": 0}, {**queue, "queue_id": 2},
        {**topic, "topic": "u", "verdict": "OK"}, {**queue, "topic": "u", "queue_id": 0},
        {**topic, "group": "calm", "verdict": "OK"},
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    arguments = read_arguments(make_parser("lag_report", ""), ["--namesrv", "h:1", "--output", str(tmp_path)], {})
    finished = finish_lag(arguments, StoredRows([tmp_path / "rows.parquet"]), NOON)
    for row in rows:
        finished.fill(row)
    shown = {"client_id": "c1", "host": "10.0.0.1", "queues": 1}
    assert asked == ["g"]
    assert [row["owners"] for row in rows] == [[{**shown, "queues": 2}], [shown], None, [], None, None, None]
