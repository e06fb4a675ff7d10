"""Sharing of queues among the members of a group."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.model.allocate import allocate_averagely, allocate_in_turn
from gantry.model.message import MessageQueue


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", queue_id) for queue_id in range(count)]


def members(count: int) -> list[str]:
    return sorted(f"10.0.0.{number}@1" for number in range(count))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 64), st.integers(1, 20))
def test_every_queue_has_exactly_one_owner(queue_count: int, member_count: int):
    shares = [
        allocate_averagely(member, queues_of(queue_count), members(member_count)) for member in members(member_count)
    ]
    assert [queue for share in shares for queue in share] == queues_of(queue_count)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 64), st.integers(1, 20), st.integers(0, 19))
def test_the_share_equals_that_of_rocketmq(queue_count: int, member_count: int, index: int):
    index %= member_count
    mod = queue_count % member_count
    size = 1 if queue_count <= member_count else queue_count // member_count + (index < mod)
    start = index * size if mod > 0 and index < mod else index * size + mod
    expected = tuple(queues_of(queue_count)[start : start + max(0, min(size, queue_count - start))])
    assert allocate_averagely(members(member_count)[index], queues_of(queue_count), members(member_count)) == expected


def test_a_client_that_is_not_a_member_gets_no_queues():
    assert allocate_averagely("stranger", queues_of(4), members(2)) == ()
    assert allocate_averagely("stranger", queues_of(4), []) == ()


def test_in_turn_each_member_gets_every_nth_queue() -> None:
    queues = [MessageQueue("T", "a", number) for number in range(5)]
    shares = [allocate_in_turn(client, queues, ["x", "y"]) for client in ("x", "y", "z")]
    assert shares == [(queues[0], queues[2], queues[4]), (queues[1], queues[3]), ()]
