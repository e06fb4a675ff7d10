"""The answers of real brokers, row by row, read without Spark."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In

from gantry.model.javahash import java_hash
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerprocess import Peer, peer_of
from tests.support.datasource import LiveCluster, commit, make_group, read, read_task, reader, rows, send
from tests.support.heartbeats import consumer_beat

Row = dict[str, Any]


async def fill(peers: Mapping[str, Peer]) -> None:
    """Put in what the tests know: ten messages and a half-consumed group on a, five consumed on b."""
    for peer in peers.values():
        await peer.make_topic("Orders", 2)
        for group in ("half", "absent"):
            await make_group(peer, group, consume_enable=group != "absent")
    a, b = peers["broker-a"], peers["broker-b"]
    await send(a, "Orders", 0, "A", "B", "A", "B", "A", "A", "A", "B", None, "C")
    await send(b, "Orders", 0, *["A"] * 5)
    await commit(a, "half", "Orders", 0, 4)
    await commit(b, "half", "Orders", 0, 5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"), "broker-a", "broker-b")
    try:
        cluster.start()
        cluster.put(fill)
        yield cluster
    finally:
        cluster.stop()


def of_queue(found: list[Row], group: str, broker: str, queue_id: int) -> Row:
    (row,) = [one for one in found if (one["group"], one["broker"], one["queue_id"]) == (group, broker, queue_id)]
    return row


def numbers(row: Row) -> tuple[Any, ...]:
    return row["min_offset"], row["max_offset"], row["committed_offset"], row["lag"]


def test_offsets_tell_every_queue_of_a_consumed_topic(cluster: LiveCluster):
    found = rows("offsets", namesrv=cluster.namesrv.address)
    half = [row for row in found if row["group"] == "half"]
    assert {(row["broker"], row["queue_id"]): numbers(row) for row in half} == {
        ("broker-a", 0): (0, 10, 4, 6),
        ("broker-a", 1): (0, 0, None, None),
        ("broker-b", 0): (0, 5, 5, 0),
        ("broker-b", 1): (0, 0, None, None),
    }
    assert {row["error"] for row in half} == {None}
    assert not [row for row in found if row["group"] == "absent"]  # Its topics are unknown.


def test_what_is_pushed_down_is_all_that_is_read(cluster: LiveCluster):
    filters = [EqualTo(("group",), "half"), In(("broker",), ("broker-a", None)), GreaterThanOrEqual(("queue_id",), 1)]
    made = reader("offsets", namesrv=cluster.namesrv.address)
    assert made.narrow(filters) == []
    (row,) = read(reader("offsets", namesrv=cluster.namesrv.address), filters)
    assert (row["group"], row["broker"], row["queue_id"]) == ("half", "broker-a", 1)
    assert rows("offsets", [EqualTo(("group",), "nobody")], namesrv=cluster.namesrv.address) == []
    assert rows("offsets", namesrv=cluster.namesrv.address, topics="Others") == []


def test_heads_and_tags_of_what_is_not_consumed(cluster: LiveCluster):
    before = datetime.now(UTC) - timedelta(minutes=5)
    found = rows("heads", namesrv=cluster.namesrv.address)
    row = of_queue(found, "half", "broker-a", 0)
    assert (row["first_offset"], row["filter"], row["error"]) == (4, None, None)
    assert before < row["first_stored_at"] <= row["broker_now"] < row["expires_at"]
    assert row["expires_at_is_earliest"] is True
    tags = {one["tag"]: one["messages"] for one in row["tags"]}
    assert (tags, row["tags"][0]["tag"]) == ({"A": 3, "B": 1, None: 1, "C": 1}, "A")
    assert row["tags_examined"] == 6
    caught_up = of_queue(found, "half", "broker-b", 0)
    assert (caught_up["first_offset"], caught_up["tags"], caught_up["error"]) == (None, [], None)


def test_a_live_groups_filter_decides_what_its_head_is(cluster: LiveCluster):
    async def subscribed() -> tuple[list[Row], list[Row], list[Row]]:
        async with peer_of(cluster.brokers["broker-a"].address) as peer:
            beat = consumer_beat("1@1", "half", "Orders", expression="B || C")
            answer = await peer.ask(RequestCode.HEART_BEAT, body=beat)
            assert answer.code == ResponseCode.SUCCESS
            kinds = ("heads", "groups", "offsets")
            read_all = [asyncio.to_thread(rows, kind, namesrv=cluster.namesrv.address) for kind in kinds]
            heads, groups, offsets = [await one for one in read_all]
            return heads, groups, offsets

    heads, groups, offsets = asyncio.run(subscribed())
    row = of_queue(heads, "half", "broker-a", 0)
    assert (row["first_offset"], row["filter"]) == (7, "B || C")
    assert row["tags_examined"] == 6
    by_broker = {(row["group"], row["broker"]): row for row in groups}
    assert by_broker["half", "broker-a"]["clients"] == 1
    assert by_broker["half", "broker-b"]["clients"] == 0
    assert by_broker["half", "broker-b"]["ever_seen"] is True
    assert by_broker["absent", "broker-a"]["ever_seen"] is None
    assert by_broker["absent", "broker-a"]["consume_enabled"] is False
    retry = [row for row in offsets if row["topic"] == "%RETRY%half"]
    assert {row["committed_offset"] for row in retry} <= {None}


def test_a_backlog_is_a_row_for_each_unit(cluster: LiveCluster):
    found = rows("backlog", namesrv=cluster.namesrv.address)
    assert {row["group"] for row in found} == {"half"}
    assert [row["queue_offset"] for row in found] == [4, 5, 6, 7, 8, 9]
    assert [row["tag_hash"] for row in found] == [
        0 if tag is None else java_hash(tag) for tag in ("A", "A", "A", "B", None, "C")
    ]
    assert all(row["size"] > 0 and row["stored_at"] is not None for row in found)
    assert [row["physical_offset"] for row in found] == sorted(row["physical_offset"] for row in found)


def test_a_backlog_is_narrowed_by_offset_tag_and_time(cluster: LiveCluster):
    namesrv = cluster.namesrv.address
    by_tag = rows("backlog", [EqualTo(("tag_hash",), java_hash("A"))], namesrv=namesrv, start=5)
    assert [row["queue_offset"] for row in by_tag] == [5, 6]
    assert [row["queue_offset"] for row in rows("backlog", namesrv=namesrv, start=5, to=8)] == [5, 6, 7]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert rows("backlog", namesrv=namesrv, start=later) == []
    assert len(rows("backlog", namesrv=namesrv, to=later)) == 6
    some = rows("backlog", [In(("queue_offset",), (6, 9))], namesrv=namesrv)
    assert [row["queue_offset"] for row in some] == [6, 9]


def test_a_task_run_again_gives_the_same_rows(cluster: LiveCluster):
    made = reader("backlog", namesrv=cluster.namesrv.address, maxRowsPerPartition=4)
    tasks = list(made.partitions())
    assert len(tasks) == 2
    first = [read_task(made, task) for task in tasks]
    cluster.put(lambda peers: send(peers["broker-a"], "Orders", 0, "later"))
    assert [read_task(made, task) for task in tasks] == first
    assert sum(map(len, first)) == 6
