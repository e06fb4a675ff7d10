"""Lag as Prometheus series: which values are summed, which are unknown, and which are left out."""

from services.gateway.usecases.sampling.lagseries import LagFigure, LagFigures, LagSeries
from services.gateway.usecases.sampling.rounds import Sample

NOW_MS = 1_000_000
CLUSTERS = {"a": "One", "b": "Two"}


def sample(
    group="G", topic="T", broker="a", *, low=(0,), high=(10,), committed=(4,), stored_at_ms=(NOW_MS - 5_000,),
    is_age_known=True,
):  # fmt: skip
    return Sample(
        group, topic, broker, tuple(range(len(high))), low, high, committed, stored_at_ms, is_age_known=is_age_known
    )


def figures(*samples, missing=(), series=None):
    away = missing if isinstance(missing, dict) else dict.fromkeys(missing, ())
    return (series or LagSeries(series_max=100)).add_up(samples, away, CLUSTERS, NOW_MS)


def test_lag_is_the_sum_of_all_queues_with_the_age_of_the_oldest():
    found = figures(
        sample(low=(0, 8), high=(10, 20), committed=(4, 2), stored_at_ms=(NOW_MS - 5_000, NOW_MS - 9_000)),
        sample(broker="b", committed=(10,), stored_at_ms=(None,)),
    )
    assert found == LagFigures([LagFigure("One", "G", "T", 6 + 12, 9_000)], [])


def test_a_group_at_the_end_is_not_behind():
    assert figures(sample(committed=(10,), stored_at_ms=(None,))).exported == [LagFigure("One", "G", "T", 0, 0)]
    assert figures(sample(low=(7,), high=(7,), committed=(None,), stored_at_ms=(None,))).exported[0].messages == 0


def test_a_message_stored_ahead_of_the_clock_has_no_negative_age():
    assert figures(sample(stored_at_ms=(NOW_MS + 50,))).exported[0].age_ms == 0


def test_an_age_is_unknown_if_that_of_one_queue_is_unknown():
    found = figures(
        sample(low=(0, 0), high=(10, 10), committed=(4, 4), stored_at_ms=(NOW_MS - 5_000, None), is_age_known=False)
    )
    assert found.exported == found.unknown == [LagFigure("One", "G", "T", 12, None)]
    assert b"lag_latency{" not in found.render()
    assert b'missing="latency",topic="T"} 1.0' in found.render()


def test_a_group_whose_filter_accepts_none_of_its_messages_is_not_behind_in_time():
    found = figures(sample(stored_at_ms=(None,)))
    assert (found.exported, found.unknown) == ([LagFigure("One", "G", "T", 6, 0)], [])


def test_a_lag_is_unknown_without_a_commit_or_with_one_beyond_the_end():
    for committed in (None, 11):
        found = figures(sample(committed=(committed,), stored_at_ms=(None,), is_age_known=False))
        assert found == LagFigures([], [LagFigure("One", "G", "T", None, None)])
        assert b'missing="messages",topic="T"} 1.0' in found.render()
        assert b"rocketmq_consumer_lag_messages{" not in found.render()


def test_a_lag_is_unknown_while_one_of_its_brokers_is_unavailable():
    series = LagSeries(series_max=100)
    both = [sample(), sample(broker="b"), sample(group="OTHER")]
    assert figures(*both, series=series).unknown == []
    for _ in range(2):
        found = figures(sample(), sample(group="OTHER"), missing=["b"], series=series)
        assert ([figure.group for figure in found.exported], found.unknown) == (
            ["OTHER"],
            [LagFigure("One", "G", "T", None, None)],
        )
    assert [figure.group for figure in figures(missing=["a", "b"], series=series).unknown] == ["G", "OTHER"]
    assert figures(*both, series=series).unknown == []
    # A broker that was removed for good holds nothing.
    assert figures(sample(), series=series).exported == [LagFigure("One", "G", "T", 6, 5_000)]


def test_a_lag_is_unknown_if_a_broker_of_the_topic_has_been_silent_since_the_sampler_began():
    found = figures(
        *(sample(topic=topic) for topic in ("T", "%RETRY%G", "ELSEWHERE")), sample(group="H", topic="%RETRY%H"),
        missing={"b": {"T", "OTHER"}, "c": set()},
    )  # fmt: skip
    assert [(figure.topic, figure.messages) for figure in found.exported] == [("ELSEWHERE", 6), ("%RETRY%H", 6)]
    assert found.unknown == [LagFigure("One", "G", topic, None, None) for topic in ("T", "%RETRY%G")]


def test_a_topic_without_a_group_has_no_lag():
    assert figures(sample(group=None, committed=(None,), stored_at_ms=(None,))) == LagFigures([], [])


def test_the_groups_furthest_behind_have_series_if_there_are_too_many():
    groups = {"g1": 1, "g2": 9, "g3": 5, "g4": 9}
    found = figures(
        *(sample(group=group, committed=(10 - behind,)) for group, behind in groups.items()),
        series=LagSeries(series_max=3),
    )
    assert ([figure.group for figure in found.exported], found.left_out) == (["g2", "g4", "g3"], 1)


def test_unknown_lags_have_the_same_limit_of_series():
    found = figures(
        *(sample(group=f"g{number}", committed=(None,), is_age_known=False) for number in range(5)),
        series=LagSeries(series_max=3),
    )
    assert ([figure.group for figure in found.unknown], found.left_out) == (["g0", "g1", "g2"], 2)


def test_names_and_units_are_those_of_rocketmq():
    text = figures(sample(), sample(topic="%RETRY%G", committed=(None,), low=(0,), high=(0,))).render().decode()
    labels = 'cluster="One",consumer_group="G",is_retry="{}",is_system="false",topic="{}"'
    assert f"rocketmq_consumer_lag_messages{{{labels.format('false', 'T')}}} 6.0\n" in text
    assert f"rocketmq_consumer_lag_messages{{{labels.format('true', '%RETRY%G')}}} 0.0\n" in text
    assert f"rocketmq_consumer_lag_latency{{{labels.format('false', 'T')}}} 5000.0\n" in text
    assert "gantry_gateway_lag_unknown{" not in text
    assert "gantry_gateway_lag_left_out 0.0\n" in text
