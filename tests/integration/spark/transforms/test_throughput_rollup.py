"""Throughput by minute, hour and day: whole messages, nothing twice, nothing negative, nothing made up."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gantry.model.laghistory import LagSample, Looks, Outage, add_up
from spark.jobs.throughput_rollup import compute
from spark.transforms.throughput_rollup import throughput_rollup

START = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
DAY = START.replace(hour=0)
SAMPLES = (
    "sampled_at timestamp, group string, topic string, broker string, queue_id int,"
    " min_offset long, max_offset long, committed_offset long, looked_at timestamp, is_served boolean, reset_messages long"
)
COLUMNS = ["unit", "bucket_at", "topic", "group", "messages", "rate_max", "lag_messages", "covered_s", "queues"]


def at(seconds):
    return START + timedelta(seconds=seconds)


class Samples:
    """Samples of many topics, each a case of its own, so that one Spark job answers all."""

    def __init__(self):
        self.rows = []

    def add(self, topic, readings, *, group="g", broker="b0", queue_id=0, looked=None, served=None, resets=None):
        """Add readings; `looked`: seconds of a reading → seconds of the look before it. `resets`: → messages moved.

        `served`: seconds of a reading → whether clients were connected.
        """
        for seconds, top, committed, *bottom in readings:
            low = bottom[0] if bottom else 0
            before = (looked or {}).get(seconds)
            looked_at = None if before is None else at(before)
            moved = (resets or {}).get(seconds)
            offsets, is_served = (low, top, committed), (served or {}).get(seconds)
            self.rows.append((at(seconds), group, topic, broker, queue_id, *offsets, looked_at, is_served, moved))
        return self


def cases():
    samples = Samples()
    # 100 messages in 90 s over the border of a minute: 66.6 in the first, the rest in the second.
    samples.add("border", [(0, 0, 0), (90, 100, 50)])
    # Ends exactly on a border: the next minute has no sample that says anything.
    samples.add("edge", [(0, 0, 0), (60, 7, 7)])
    # Five minutes without a change are known, an hour without a sample is not.
    samples.add("quiet", [(0, 10, 10), (300, 10, 10)])
    samples.add("gap", [(0, 0, 0), (60, 60, 60), (3_660, 3_660, 60), (3_690, 3_690, 60)])
    # A rewind is not consumed backwards, a queue made anew did not lose what it had.
    samples.add("rewind", [(0, 100, 100), (15, 110, 40), (30, 120, 70)])
    samples.add("anew", [(0, 1_000, 1_000, 5), (15, 3, 0), (30, 10, 2)])
    # Two groups sample the same queue at different times: what came in counts once.
    samples.add("shared", [(0, 0, 0), (30, 30, 30)]).add("shared", [(0, 0, 0), (15, 15, 5), (30, 30, 5)], group="h")
    # Two queues, one of which nobody committed.
    samples.add("queues", [(0, 0, 0), (30, 6, 3)]).add("queues", [(0, 0, None), (30, 5, None)], queue_id=1)
    samples.add("one", [(0, 5, 5)])
    # Beyond what a double can say of an offset.
    huge = 2**60
    samples.add("huge", [(0, huge, huge), (90, huge + 3, huge + 3)])
    # The topic has no group at first. Then it has one, and no samples without a group any more.
    samples.add("alone", [(0, 10, None), (15, 25, None)], group=None).add("alone", [(30, 40, 0), (45, 55, 0)])
    # Nothing came for two minutes and a half, and then all at once.
    samples.add("burst", [(0, 0, 0), (165, 30, 15)], looked={165: 150})
    # The look before was longer ago than a sample is left out for, or is before the last sample (a round cut off).
    samples.add("away", [(0, 0, 0), (3_615, 60, 60)], looked={3_615: 3_600})
    samples.add("cut", [(0, 0, 0), (30, 60, 60)], looked={30: -15})
    # Two brokers whose samples lie apart: 1/s and 2/s overlap in one quarter of a minute of three.
    samples.add("two", [(0, 0, 0), (30, 30, 0), (45, 30, 0)])
    samples.add("two", [(0, 0, 0), (15, 0, 0), (45, 60, 0)], broker="b1")
    return add_moves(samples)


def add_moves(samples):
    """Add commits that moved over messages that nobody consumed."""
    # 90 are consumed, all others are trimmed, and the consumer goes on behind them.
    samples.add("trim", [(0, 1_000_000, 0), (15, 1_000_000, 90), (30, 1_000_010, 1_000_005, 1_000_000)])
    # Resets beside consumers: forward by 500, and backward by 20 while 30 were consumed.
    beside = [(0, 1_000, 0), (15, 1_000, 30), (30, 1_030, 560), (45, 1_030, 590), (60, 1_030, 600)]
    samples.add("set", beside, resets={30: 500, 60: -20})
    # A commit that was set three million on, and then consumed of.
    samples.add("skip", [(0, 3_000_100, 0), (15, 3_000_100, 3_000_000), (30, 3_000_100, 3_000_100)])
    # A commit for a group without a client: set once; or of a client that came and left, which commits more than once.
    samples.add("put", [(0, 5_000, 0), (15, 5_000, 4_000), (30, 5_000, 4_000)], served={15: False})
    samples.add("short", [(0, 5_000, 0), (15, 5_000, 4_000), (30, 5_000, 4_010)], served={15: False})
    samples.add("seen", [(0, 5_000, 0), (15, 5_000, 4_000), (30, 5_000, 4_000)], served={15: True})
    return samples


@pytest.fixture(scope="module")
def table(spark):
    frame = throughput_rollup(spark.createDataFrame(cases().rows, SAMPLES))
    assert frame.columns == COLUMNS
    return frame.toArrow().to_pylist()


@pytest.fixture(scope="module")
def rollup(table):
    found = {}
    for row in table:
        values = (row["messages"], row["lag_messages"], row["covered_s"], row["queues"])
        found.setdefault((row["topic"], row["group"], row["unit"]), {})[row["bucket_at"]] = values
    return found


@pytest.fixture(scope="module")
def peaks(table):
    found = {}
    for row in table:
        found.setdefault((row["topic"], row["group"], row["unit"]), {})[row["bucket_at"]] = row["rate_max"]
    return found


def test_growth_over_a_border_is_split_by_time_into_whole_messages(rollup):
    assert rollup["border", None, "minute"] == {at(0): (66, None, 60.0, 1), at(60): (34, None, 30.0, 1)}
    assert rollup["border", "g", "minute"] == {at(0): (33, 0, 60.0, 1), at(60): (17, 50, 30.0, 1)}
    assert rollup["border", None, "hour"] == {at(0): (100, None, 90.0, 1)}
    # The broker goes on with other topics for an hour: at the end of the day's samples, this one is gone.
    assert rollup["border", "g", "day"] == {DAY: (50, None, 90.0, 1)}


def test_an_interval_that_ends_on_a_border_gives_nothing_to_the_next(rollup):
    assert rollup["edge", None, "minute"] == {at(0): (7, None, 60.0, 1)}
    assert rollup["edge", "g", "minute"] == {at(0): (7, 0, 60.0, 1)}


def test_minutes_between_two_samples_are_known_up_to_five_and_absent_in_a_gap(rollup):
    assert rollup["quiet", None, "minute"] == {at(60 * minute): (0, None, 60.0, 1) for minute in range(5)}
    whole = (60, None, 60.0, 1)
    minutes = rollup["gap", None, "minute"]
    assert minutes == {at(0): whole, at(60): whole, at(3_600): whole, at(3_660): (30, None, 30.0, 1)}
    assert rollup["gap", None, "day"] == {DAY: (3_690, None, 3_690.0, 1)}


def test_what_went_back_is_left_out(rollup):
    assert rollup["rewind", None, "minute"] == {at(0): (20, None, 30.0, 1)}
    assert rollup["rewind", "g", "minute"] == {at(0): (30, 50, 15.0, 1)}
    assert rollup["anew", None, "minute"] == {at(0): (7, None, 15.0, 1)}
    assert rollup["anew", "g", "minute"] == {at(0): (2, 8, 15.0, 1)}


def test_what_moved_was_not_consumed(rollup, peaks):
    assert rollup["trim", "g", "minute"] == {at(0): (95, 5, 30.0, 1)}
    assert rollup["trim", None, "minute"] == {at(0): (10, None, 30.0, 1)}
    assert rollup["skip", "g", "minute"] == {at(0): (100, 0, 30.0, 1)}
    assert (peaks["trim", "g", "hour"], peaks["skip", "g", "hour"]) == ({at(0): 6.0}, {at(0): round(100 / 15, 6)})


def test_a_reported_reset_never_counts_as_consumed(rollup, peaks):
    assert rollup["set", "g", "minute"][at(0)][0] == 60
    assert rollup["set", "g", "minute"][at(0)][2:] == (30.0, 1)
    assert rollup["set", None, "minute"] == {at(0): (30, None, 60.0, 1)}
    assert peaks["set", "g", "hour"] == {at(0): 2.0}


def test_a_commit_that_was_set_while_no_client_was_connected_is_not_consumed(rollup, peaks):
    assert rollup["put", "g", "minute"] == {at(0): (0, 1_000, 30.0, 1)}
    assert peaks["put", "g", "hour"] == {at(0): 0.0}
    assert rollup["short", "g", "minute"] == {at(0): (4_010, 990, 30.0, 1)}
    assert rollup["seen", "g", "minute"] == {at(0): (4_000, 1_000, 30.0, 1)}


def test_a_topic_of_two_groups_counts_once(rollup):
    assert rollup["shared", None, "minute"] == {at(0): (30, None, 30.0, 1)}
    assert rollup["shared", "g", "minute"] == {at(0): (30, 0, 30.0, 1)}
    assert rollup["shared", "h", "minute"] == {at(0): (5, 25, 30.0, 1)}


def test_queues_are_added_up(rollup):
    assert rollup["queues", None, "hour"] == {at(0): (11, None, 30.0, 2)}
    # Queue 1 has messages, and the group never committed there.
    assert rollup["queues", "g", "hour"] == {at(0): (3, None, 30.0, 1)}


def lags_of_looks(seen, *, step, looks):
    """Return the last lag of each step, as a history has it. `seen` are triples: second, broker, lag."""
    samples = sorted(LagSample(at(seconds), broker, lag) for seconds, broker, lag in seen)
    points = add_up(samples, step=timedelta(seconds=step), until=at(900), looks=looks)
    return {at((point.at - START).total_seconds() // step * step): point.lag for point in points}


def lags_of_buckets(frame, unit="minute", **facts):
    rows = throughput_rollup(frame, **facts).toArrow().to_pylist()
    return {
        row["bucket_at"]: row["lag_messages"]
        for row in rows
        if (row["unit"], row["topic"], row["group"]) == (unit, "t", "g")
    }


def test_the_lag_of_a_bucket_is_that_of_the_history_at_its_end(spark):
    samples, seen = Samples(), []
    for seconds in range(0, 900, 15):
        for broker, offset, away in (("b0", 0, range(0)), ("b1", 2, range(400, 560)), ("b2", 1, range(200, 900))):
            committed = seconds // 2
            if seconds not in away:
                samples.add("t", [(seconds + offset, 1_000, committed)], broker=broker)
                seen.append((seconds + offset, broker, 1_000 - committed))
    outages = [Outage("b1", at(405), at(555)), Outage("home", at(120), at(180))]
    frame = spark.createDataFrame(samples.rows, SAMPLES)
    for homes in ((), ("home",)):
        found = lags_of_buckets(frame, outages=outages, homes={"t": homes})
        expected = lags_of_looks(seen, step=60, looks=Looks(outages=outages, homes=homes))
        # The broker `home` never has numbers.
        assert (found[at(120)] is None) == bool(homes)
        assert [found[at(60 * minute)] for minute in range(9)] == [expected[at(60 * minute)] for minute in range(9)]
        assert [found[at(60 * minute)] for minute in (6, 7, 8)] == [None, None, None]
        # b2 ended at 195 s. Its sample holds for six minutes; after that the history adds up the others.
        assert {found[at(60 * minute)] for minute in range(10, 15)} == {None}
    assert lags_of_buckets(frame, "hour", outages=outages) == {at(0): None}


def test_brokers_to_which_a_topic_comes_and_from_which_it_goes_make_no_lag_unknown(spark):
    samples = Samples()
    for seconds in range(0, 1_200, 15):
        samples.add("t", [(seconds, 1_000, 400)], broker="b0")
        if seconds >= 600:
            samples.add("t", [(seconds, 100, 40)], broker="b1")
        # The topic is taken from b2, which goes on with another one.
        samples.add("t" if seconds < 200 else "other", [(seconds, 10, 4)], broker="b2")
    frame = spark.createDataFrame(samples.rows, SAMPLES)
    found = lags_of_buckets(frame)
    assert [found[at(60 * minute)] for minute in range(20)] == [606] * 9 + [600] + [660] * 10
    assert lags_of_buckets(frame, "day") == {DAY: 660}


def test_one_sample_says_nothing(rollup):
    assert not [key for key in rollup if key[0] == "one"]


def test_large_offsets_lose_nothing(rollup):
    assert rollup["huge", None, "minute"] == {at(0): (2, None, 60.0, 1), at(60): (1, None, 30.0, 1)}


def test_a_topic_without_a_group_counts_and_is_no_groups(rollup):
    assert rollup["alone", None, "minute"] == {at(0): (45, None, 45.0, 1)}
    assert rollup["alone", "g", "minute"] == {at(0): (0, 55, 15.0, 1)}
    assert {group for topic, group, _ in rollup if topic == "alone"} == {None, "g"}


def test_what_came_at_once_lies_where_it_came(rollup, peaks):
    assert [rollup["burst", None, "minute"][at(60 * minute)][0] for minute in range(3)] == [0, 0, 30]
    assert [rollup["burst", "g", "minute"][at(60 * minute)][:2] for minute in range(3)] == [
        (0, 0),
        (0, 0),
        (15, 15),
    ]
    assert peaks["burst", None, "hour"] == {at(0): 2.0}
    assert peaks["burst", "g", "minute"] == {at(0): 0.0, at(60): 0.0, at(120): 1.0}


def test_a_look_says_nothing_of_a_queue_that_was_not_sampled_or_of_a_sample_after_it(rollup):
    # 60 messages in 3,615 s: what lies in the midst is not known, and the last quarter of a minute has no more than that.
    assert rollup["away", None, "minute"] == {at(0): (0, None, 60.0, 1), at(3_600): (1, None, 15.0, 1)}
    assert rollup["cut", None, "minute"] == {at(0): (60, None, 30.0, 1)}


def test_the_largest_rate_is_that_of_all_queues_at_one_moment(peaks):
    assert peaks["two", None, "minute"] == {at(0): 3.0}
    assert peaks["two", "g", "minute"] == {at(0): 0.0}
    assert peaks["queues", None, "hour"] == {at(0): round(11 / 30, 6)}
    # Across a border each bucket has it; a gap's mean rate is that of its ends.
    assert peaks["border", None, "minute"] == {at(0): 1.111111, at(60): 1.111111}
    assert peaks["gap", None, "day"] == {DAY: 1.0}


def test_no_bucket_has_a_largest_rate_below_its_mean(table):
    assert all(row["rate_max"] >= row["messages"] / row["covered_s"] - 0.1 for row in table)
    assert None not in [row["rate_max"] for row in table]


def test_only_the_buckets_asked_for(spark):
    frame = throughput_rollup(spark.createDataFrame(cases().rows, SAMPLES), start=at(0), end=at(60))
    kept = frame.select("unit", "bucket_at").distinct().toArrow().to_pylist()
    assert sorted((row["unit"], row["bucket_at"]) for row in kept) == [("hour", at(0)), ("minute", at(0))]


class Work:
    """The context of a job that reads these samples."""

    def __init__(self, spark, rows, start, end):
        self.spark, self.rows = spark, rows
        self.run = SimpleNamespace(window_start=start, window_end=end)
        self.read = []

    def samples(self, since, until, *, with_topics):
        assert with_topics
        self.read.append(until - since)
        return self.spark.createDataFrame([row for row in self.rows if since <= row[0] <= until], SAMPLES)

    def outages(self, since, until):
        return ()


def test_a_long_window_is_computed_in_pieces_of_a_day(spark):
    samples = Samples().add("t", [(300 * step, 7 * step, 3 * step) for step in range(3 * 288)])
    work = Work(spark, samples.rows, at(600), at(2.5 * 86_400))
    found = compute(work).toArrow().to_pylist()
    assert max(work.read) <= timedelta(days=1, seconds=2 * 330)
    start = at(300)
    whole = throughput_rollup(spark.createDataFrame(samples.rows, SAMPLES), end=at(2.5 * 86_400)).toArrow().to_pylist()
    limits = {"minute": start.replace(minute=0), "hour": start.replace(minute=0), "day": DAY}
    expected = [row for row in whole if row["bucket_at"] >= limits[row["unit"]]]

    def key(row):
        return row["unit"], row["bucket_at"], row["group"] or ""

    # The last buckets are not over.
    ended = [row for row in sorted(found, key=key) if row["bucket_at"] < at(2.5 * 86_400 - 86_400)]
    assert ended == [row for row in sorted(expected, key=key) if row["bucket_at"] < at(2.5 * 86_400 - 86_400)]
    assert len({key(row) for row in found}) == len(found) == len(expected)
    assert {row["lag_messages"] is None for row in found if row["group"] is not None} == {False}


def test_no_samples_no_rows(spark):
    assert throughput_rollup(spark.createDataFrame([], SAMPLES)).toArrow().num_rows == 0
