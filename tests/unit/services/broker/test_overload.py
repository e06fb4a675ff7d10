from services.broker.overload import TICK_INTERVAL_MS, LoopLag, Overload
from services.broker.settings import BrokerSettings, LiveSettings


def lag_of(*late_ms: int) -> LoopLag:
    lag = LoopLag()
    now_ms = 0
    lag.tick(now_ms)
    for late in late_ms:
        now_ms += TICK_INTERVAL_MS + late
        lag.tick(now_ms)
    return lag


def refusal(
    settings: BrokerSettings, lag: LoopLag | None = None, *, waiting: int = 0, oldest: int = 0, flush: int = 0
) -> str:
    overload = Overload(LiveSettings(settings), lag or lag_of())
    remark = overload.send_refusal(waiting_count=waiting, oldest_wait_ms=oldest, flush_ms=flush)
    return "" if remark is None else remark.partition("]")[0][1:]


def test_one_stall_is_no_lag_but_a_second_of_stalls_is() -> None:
    assert lag_of(5000).lag_ms == 0
    assert lag_of(*[300] * 9).lag_ms == 0
    assert lag_of(*[300] * 9, 250).lag_ms == 250
    assert lag_of(*[300] * 9, 0).lag_ms == 0
    assert lag_of(700, 20).lag_max_ms == 700


def test_each_limit_has_its_own_remark() -> None:
    settings = BrokerSettings(send_thread_pool_queue_capacity=10, os_page_cache_busy_time_out_mills=1000)
    assert refusal(settings) == ""
    assert refusal(settings, waiting=9, oldest=1000, flush=1000) == ""
    assert refusal(settings, waiting=10) == "OVERLOAD"
    assert refusal(settings, flush=1001) == "REJECTREQUEST"
    assert refusal(settings, waiting=1, oldest=1001) == "PCBUSY_CLEAN_QUEUE"
    assert refusal(settings, lag_of(*[201] * 10)) == "TIMEOUT_CLEAN_QUEUE"


def test_without_fast_failure_only_the_capacity_counts() -> None:
    settings = BrokerSettings(send_thread_pool_queue_capacity=10, broker_fast_failure_enable=False)
    assert refusal(settings, lag_of(*[5000] * 10), oldest=9999, flush=9999) == ""
    assert refusal(settings, waiting=10) == "OVERLOAD"


def test_held_pulls_are_bounded_too() -> None:
    settings = BrokerSettings(pull_thread_pool_queue_capacity=2, wait_time_mills_in_pull_queue=100)
    calm = Overload(LiveSettings(settings), lag_of())
    assert calm.pull_refusal(held_count=1) is None
    assert "2 pulls are held, the limit is 2" in str(calm.pull_refusal(held_count=2))
    late = Overload(LiveSettings(settings), lag_of(*[101] * 10))
    assert str(late.pull_refusal(held_count=0)).startswith("[TIMEOUT_CLEAN_QUEUE]")
    assert (calm.refused_pulls, late.refused_pulls) == (1, 1)
