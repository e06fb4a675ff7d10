"""The choice of the next queue."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.client.queueselector import LeastLatency, RoundRobin, at_random, by_hash, hash_index
from gantry.model.javahash import java_hash
from gantry.model.message import MessageQueue


def queues_of(*brokers: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for broker in brokers for queue_id in range(count)]


def from_zero(bound: int) -> int:
    return 0


def test_round_robin_uses_every_queue_equally():
    queues = queues_of("a", "b", count=3)
    selector = RoundRobin(from_zero)
    picked = Counter(selector.select(queues) for _ in range(60))
    assert set(picked.values()) == {10}
    assert set(picked) == set(queues)


def test_round_robin_starts_where_the_draw_says():
    queues = queues_of("a", count=4)
    assert RoundRobin(lambda bound: 2).select(queues).queue_id == 3


def test_after_a_failure_round_robin_takes_another_broker():
    queues = queues_of("a", "b", count=8)
    selector = RoundRobin(from_zero)
    assert {selector.select(queues, last_broker="a").broker_name for _ in range(20)} == {"b"}


def test_with_one_broker_only_a_retry_stays_there():
    queues = queues_of("a", count=3)
    selector = RoundRobin(from_zero)
    assert selector.select(queues, last_broker="a").broker_name == "a"


def test_least_latency_prefers_available_brokers():
    queues = queues_of("a", "b", "c")
    selector = LeastLatency(from_zero, lambda broker: broker == "b")
    assert {selector.select(queues).broker_name for _ in range(10)} == {"b"}


def test_least_latency_avoids_the_last_broker_even_if_none_is_available():
    queues = queues_of("a", "b")
    selector = LeastLatency(from_zero, lambda broker: False)
    assert {selector.select(queues, last_broker="a").broker_name for _ in range(10)} == {"b"}


def test_least_latency_falls_back_to_the_only_broker():
    selector = LeastLatency(from_zero, lambda broker: False)
    picked = {selector.select(queues_of("a"), last_broker="a").queue_id for _ in range(4)}
    assert picked == {0, 1}


def test_least_latency_spreads_over_the_queues_of_an_available_broker():
    selector = LeastLatency(from_zero, lambda broker: True)
    picked = Counter(selector.select(queues_of("a", count=4)) for _ in range(40))
    assert set(picked.values()) == {10}


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=20), st.integers(1, 100))
def test_a_hash_index_is_the_java_hash_without_its_sign(key: str, count: int):
    index = hash_index(key, count)
    assert 0 <= index < count
    # Java truncates towards zero and takes the absolute value afterwards.
    assert index == abs(int(java_hash(key) / count) * count - java_hash(key))


def test_the_smallest_hash_also_has_an_index():
    assert java_hash("polygenelubricants") == -(2**31)
    assert hash_index("polygenelubricants", 7) == 2**31 % 7


def test_equal_keys_get_equal_queues():
    queues = queues_of("a", "b", count=4)
    assert by_hash("N14228")(queues) == by_hash("N14228")(queues) == queues[hash_index("N14228", 8)]


def test_the_random_selector_takes_the_drawn_queue():
    queues = queues_of("a", count=4)
    assert at_random(lambda bound: bound - 1)(queues) == queues[3]
