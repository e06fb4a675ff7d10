"""The queues and brokers that producers and consumers derive from a route."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.client.queueselector import hash_index
from gantry.client.routecache import QUEUES_MAX, RouteCache, as_new_topic, publish_info, subscribe_queues
from gantry.model.route import BrokerData, QueueData, TopicRoute


def queue(name: str, *, read: int = 4, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(name, read, write, perm)


def broker(name: str, **addresses: str) -> BrokerData:
    return BrokerData("C", name, {int(key[1:]): value for key, value in addresses.items()} or {0: f"{name}:10911"})


def route(*queues: QueueData, brokers: tuple[BrokerData, ...] | None = None, conf: str | None = None) -> TopicRoute:
    return TopicRoute(queues, brokers or tuple(broker(one.broker_name) for one in queues), conf)


def names(queues) -> list[str]:
    return [f"{one.broker_name}{one.queue_id}" for one in queues]


def cache_with(*queues: QueueData, topics_max: int = 10) -> RouteCache:
    cache = RouteCache(topics_max)
    cache.update("T", route(*queues), now_ms=0)
    return cache


def ordering_queues(cache: RouteCache) -> list[str]:
    return names(cache.find("T").publish.ordering_queues)


def test_queues_that_can_be_written_are_those_with_a_master_and_the_write_bit():
    made = publish_info(
        "T",
        route(
            queue("b"),
            queue("a"),
            queue("c", perm=4),
            queue("d"),
            brokers=(broker("b"), broker("a"), broker("c"), broker("d", _1="d:1")),
        ),
        {},
    )
    assert names(made.queues) == ["a0", "a1", "b0", "b1"]
    assert made.masters == {"b": "b:10911", "a": "a:10911", "c": "c:10911"}


def test_queues_that_can_be_read_are_sorted_and_need_no_master():
    given_route = route(queue("b", read=1), queue("a", read=2), queue("c", perm=2), brokers=(broker("b", _1="b:1"),))
    assert names(subscribe_queues("T", given_route)) == ["a0", "a1", "b0"]


def test_keys_are_spread_over_all_write_queues_up_or_down_writable_or_not():
    made = route(queue("a"), queue("b", perm=4), brokers=(broker("a"), broker("b", _1="b:1")))
    cache = RouteCache(10)
    assert names(cache.update("T", made, now_ms=0).publish.ordering_queues) == ["a0", "a1", "b0", "b1"]


def test_a_set_that_left_the_route_is_remembered_for_keys():
    cache = cache_with(queue("a"), queue("b"))
    cache.update("T", route(queue("a")), now_ms=1)
    assert ordering_queues(cache) == ["a0", "a1", "b0", "b1"]
    assert names(cache.find("T").publish.queues) == ["a0", "a1"]
    assert cache.missing_sets("T", route(queue("a"))) == {"b"}


def test_a_set_that_no_longer_has_the_topic_is_forgotten():
    cache = cache_with(queue("a"), queue("b"))
    cache.update("T", route(queue("a")), gone={"b"}, now_ms=1)
    assert ordering_queues(cache) == ["a0", "a1"]
    assert cache.missing_sets("T", route(queue("a"))) == set()


def test_declared_queues_count_without_a_route_and_after_their_broker_is_gone():
    cache = RouteCache(10)
    cache.set_desired("T", {"a": 2, "b": 2})
    cache.update("T", route(queue("a", write=3)), now_ms=0)
    assert ordering_queues(cache) == ["a0", "a1", "a2", "b0", "b1"]
    cache.update("T", route(queue("a", write=3)), gone={"b"}, now_ms=1)
    assert ordering_queues(cache) == ["a0", "a1", "a2", "b0", "b1"]


def test_declaring_drops_remembered_queues_of_other_brokers():
    cache = cache_with(queue("a"), queue("b"))
    cache.update("T", route(queue("a")), now_ms=1)
    cache.set_desired("T", {"a": 2})
    assert ordering_queues(cache) == ["a0", "a1"]


def test_a_changed_number_of_queues_is_taken_from_the_route():
    cache = cache_with(queue("a", write=2))
    cache.update("T", route(queue("a", write=4)), now_ms=1)
    assert ordering_queues(cache) == ["a0", "a1", "a2", "a3"]


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=12))
def test_a_key_keeps_its_queue_while_a_broker_is_away(key: str):
    cache = cache_with(queue("a", write=3), queue("b", write=4))
    before = cache.find("T").publish.queue_for_key(key)
    cache.update("T", route(queue("a", write=3)), now_ms=1)
    after = cache.find("T").publish
    assert after.queue_for_key(key) == before
    assert before == after.ordering_queues[hash_index(key, 7)]


def test_an_order_configuration_fixes_the_queues():
    made = publish_info("T", route(queue("a"), queue("b"), brokers=(broker("a"),), conf="b:2;a:1;;x;y:z;q:"), {"a": 9})
    assert names(made.ordering_queues) == ["b0", "b1", "a0"]
    assert names(made.queues) == ["a0"]


def test_a_route_with_absurdly_many_queues_is_cut():
    assert len(subscribe_queues("T", route(queue("a", read=2**31 - 1)))) == QUEUES_MAX


def test_a_new_topic_takes_its_queues_from_the_default_topic():
    made = as_new_topic(route(QueueData("a", 8, 8, 7), QueueData("b", 2, 2, 7), QueueData("c", 8, 8, 6), conf="a:1"), 4)
    assert [(one.broker_name, one.read_queue_nums, one.write_queue_nums) for one in made.queue_datas] == [
        ("a", 4, 4),
        ("b", 2, 2),
    ]
    assert made.order_topic_conf is None


def test_brokers_are_known_from_the_newest_route_until_no_route_has_them():
    cache = RouteCache(10)
    cache.update("T", route(queue("a"), brokers=(broker("a", _0="old:1"),)), now_ms=0)
    cache.update("U", route(queue("a"), queue("b"), brokers=(broker("a", _0="new:1"), broker("b"))), now_ms=1)
    assert cache.brokers["a"].master_address == "new:1"
    cache.update("U", route(queue("a")), now_ms=2)
    assert set(cache.brokers) == {"a", "b"}
    cache.prune_brokers()
    assert set(cache.brokers) == {"a"}


def test_the_least_recently_used_topic_is_evicted():
    cache = cache_with(queue("a"), topics_max=2)
    cache.update("U", route(queue("a")), now_ms=1)
    cache.find("T").used_at_ms = 5
    cache.update("V", route(queue("a")), now_ms=6)
    assert [cache.find(topic) is not None for topic in "TUV"] == [True, False, True]
    assert cache.topics_used_since(6) == ["V"]
    assert len(cache) == len(list(cache)) == 2


def test_a_deleted_topic_is_forgotten_with_its_declared_queues():
    cache = cache_with(queue("a"))
    cache.set_desired("T", {"z": 1})
    cache.forget("T")
    assert cache.find("T") is None
    cache.update("T", route(queue("a", write=1)), now_ms=0)
    assert ordering_queues(cache) == ["a0"]


def test_a_topic_without_declared_queues_has_no_missing_sets():
    assert RouteCache(1).missing_sets("X", route()) == set()


@pytest.mark.parametrize("conf", ["", None])
def test_without_an_order_configuration_the_route_decides(conf):
    assert names(publish_info("T", route(queue("a"), conf=conf), {"a": 2}).queues) == ["a0", "a1"]
