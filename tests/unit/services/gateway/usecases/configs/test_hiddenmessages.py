"""Changes of a topic that hide messages from consumers."""

from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.schemas.configs import TopicSettings
from services.gateway.usecases.configs.hiddenmessages import find_hidden, find_lost_queues, may_lose_queues

RW = TopicSettings()
ON_A = TopicSettings(brokers=["a"])
CLOSED = TopicSettings(perm="none")
NARROW = TopicSettings(read_queues=2)
BOTH = {"a": TopicConfig("T", 4, 4, 6), "b": TopicConfig("T", 4, 4, 6)}


def test_each_loss_is_reported_for_its_setting():
    assert find_lost_queues(RW, RW, BOTH) == {}
    assert find_lost_queues(RW, ON_A, BOTH) == {"/brokers": {"b": 0}}
    assert find_lost_queues(RW, CLOSED, BOTH) == {"/perm": {"a": 0, "b": 0}}
    assert find_lost_queues(RW, NARROW, BOTH) == {"/read_queues": {"a": 2, "b": 2}}
    all_of_them = TopicSettings(perm="w", read_queues=2, brokers=["a"])
    assert find_lost_queues(RW, all_of_them, BOTH) == {"/perm": {"a": 0}, "/brokers": {"b": 0}}


def test_messages_already_hidden_are_no_loss():
    assert find_lost_queues(ON_A, ON_A, BOTH) == {}
    assert find_lost_queues(CLOSED, CLOSED, {"a": TopicConfig("T", 4, 4, 0)}) == {}
    assert find_lost_queues(ON_A, TopicSettings(perm="none", brokers=["a"]), {"b": BOTH["b"]}) == {}


def test_losses_depend_on_observed_and_not_on_desired_settings():
    assert find_lost_queues(CLOSED, CLOSED, BOTH) == {"/perm": {"a": 0, "b": 0}}


def test_losses_on_an_unreachable_broker_depend_on_desired_settings():
    assert may_lose_queues(RW, ON_A, "b")
    assert may_lose_queues(RW, CLOSED, "b")
    assert may_lose_queues(RW, NARROW, "b")
    assert not may_lose_queues(RW, TopicSettings(write_queues=1, order=True), "b")
    assert not may_lose_queues(ON_A, CLOSED, "b")
    assert not may_lose_queues(CLOSED, CLOSED, "b")
    assert not may_lose_queues(None, CLOSED, "b")


def test_queues_without_messages_hide_none():
    queues = [QueueState(queue_id=0, min_offset=0, max_offset=9), QueueState(queue_id=1, min_offset=5, max_offset=5)]
    queues += [QueueState(queue_id=2, min_offset=5, max_offset=6), QueueState(queue_id=3, min_offset=0, max_offset=7)]
    assert find_hidden({"a": queues}, 1) == ["a/2 (1 message)", "a/3 (7 messages)"]
