import pytest

from services.broker import stats as stats_module
from services.broker.latency import Latency
from services.broker.stats import (
    SAMPLE_INTERVAL_MS,
    SAMPLE_TICK_MS,
    BrokerStats,
    DailyTotals,
    Flow,
    Rates,
)


def count(flow: Flow, messages: int, size_bytes: int = 0) -> None:
    flow.messages += messages
    flow.size_bytes += size_bytes
    flow.calls += 1


def test_a_window_is_the_difference_to_its_oldest_sample() -> None:
    flow = Flow(0)
    for second in range(0, 130, 10):
        flow.sample(second * 1000)
        count(flow, 10, 100)
    minute, hour, day = flow.windows(130_000)
    # The oldest of seven samples is a minute before the newest, and includes all counts up to then.
    assert minute.sum == 70
    assert minute.tps == 70 / 70
    assert hour.sum == day.sum == 130
    assert flow.windows(130_000, size=True)[0].sum == 700
    assert minute.average == 10


def test_a_rate_without_time_or_calls_is_zero() -> None:
    minute, _, _ = Flow(5).windows(5)
    assert (minute.sum, minute.tps, minute.average) == (0, 0.0, 0.0)


def test_statistics_are_found_by_rocketmq_names() -> None:
    stats = BrokerStats("C", 0)
    count(stats.put_flow("T", 0), 3, 300)
    count(stats.get_flow("T", "g", 0), 2, 200)
    sums = {
        name: stats.find(name, key, 1000)
        for name, key in [
            ("TOPIC_PUT_NUMS", "T"),
            ("TOPIC_PUT_SIZE", "T"),
            ("GROUP_GET_NUMS", "T@g"),
            ("GROUP_GET_SIZE", "T@g"),
            ("BROKER_PUT_NUMS", "C"),
            ("BROKER_GET_NUMS", "C"),
        ]
    }
    assert {name: windows[0].sum for name, windows in sums.items() if windows} == {
        "TOPIC_PUT_NUMS": 3,
        "TOPIC_PUT_SIZE": 300,
        "GROUP_GET_NUMS": 2,
        "GROUP_GET_SIZE": 200,
        "BROKER_PUT_NUMS": 3,
        "BROKER_GET_NUMS": 2,
    }
    for name, key in [("NO_SUCH", "T"), ("TOPIC_PUT_NUMS", "X"), ("BROKER_PUT_NUMS", "X"), ("GROUP_GET_NUMS", "T")]:
        assert stats.find(name, key, 1000) is None


def test_totals_do_not_decrease_when_topics_and_groups_are_deleted() -> None:
    stats = BrokerStats("C", 0)
    count(stats.put_flow("T", 0), 3, 300)
    count(stats.get_flow("T", "g", 0), 2, 200)
    count(stats.get_flow("T", "h", 0), 4, 400)
    before = stats.totals()
    stats.forget_group("h")
    stats.forget_topic("T")
    assert stats.totals() == before
    assert stats.put_items() == []
    assert stats.get_items() == []
    assert stats.put_tps("T", 1000) == stats.get_tps("T", "g", 1000) == 0.0


def test_counters_of_idle_groups_are_dropped_but_those_of_senders_stay() -> None:
    stats = BrokerStats("C", 0)
    put = stats.put_flow("T", 0)
    stats.get_flow("T", "g", 0)
    stats.sample(3 * 86_400_000)
    assert stats.put_flow("T", 0) is put
    assert stats.get_items() == []


def test_rates_are_three_numbers_even_before_there_are_samples() -> None:
    rates = Rates(("put", "get"))
    assert rates.text("put") == "0.0 0.0 0.0"
    for second in range(21):
        rates.sample(second * 1000, (second * 5, second))
    assert rates.text("put") == "5.0 5.0 5.0"
    assert rates.sum_text(("put", "get")) == "6.0 6.0 6.0"


def test_daily_totals_keep_two_mornings() -> None:
    totals = DailyTotals()
    totals.midnight(10)
    totals.midnight(25)
    assert (totals.yesterday_morning, totals.today_morning) == (10, 25)


def test_latency_buckets_are_those_of_request_28() -> None:
    latency = Latency()
    latency.observe(0, 98)
    latency.observe(7, 1)
    latency.observe(60_000, 1)
    assert latency.text().startswith("[<=0ms]:98 [0~10ms]:1 [10~50ms]:0 ")
    assert latency.text().endswith("[10s~]:1 ")
    assert (latency.total, latency.max_ms, latency.sum_ms) == (100, 60_000, 60_007)
    assert latency.quantile_ms(0.5) == 0
    assert latency.quantile_ms(0.99) == 10
    assert latency.quantile_ms(0.999) == 60_000


def test_many_counters_are_sampled_in_one_slice_per_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "SAMPLE_SLICE_MAX", 3)
    stats = BrokerStats("C", 0)
    flows = [stats.put_flow(f"t{number}", 0) for number in range(7)]
    flows += [stats.get_flow(f"t{number}", "g", 0) for number in range(5)]
    for flow in flows:
        flow.messages = flow.calls = 1

    def sampled() -> int:
        return sum(len(flow._minute) - 1 for flow in flows)

    stats.tick(SAMPLE_INTERVAL_MS - 1, 9_999)
    assert sampled() == 0
    seen = []
    for tick in range(6):
        stats.tick(SAMPLE_INTERVAL_MS + tick * SAMPLE_TICK_MS, 10_000 + tick * SAMPLE_TICK_MS)
        seen.append(sampled())
    assert seen == [3, 6, 10, 12, 12, 12], "3 of each kind at most"
    stats.forget_topic("t0")
    stats.tick(2 * SAMPLE_INTERVAL_MS, 3 * 86_400_000)
    stats.forget_topic("t1")
    for _ in range(5):
        stats.tick(2 * SAMPLE_INTERVAL_MS, 3 * 86_400_000)
    assert stats.get_items() == [], "those that nobody reads are forgotten, and one that was forgotten meanwhile"
