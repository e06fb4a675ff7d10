"""The meaning of a listener's results, and its settings."""

import pytest

from gantry.client import ClientEngine, HoldLimits, ListenerSettings, PushConsumer
from gantry.client.consumer.listening import (
    DeadLetterError,
    ReconsumeLaterError,
    Verdict,
    as_delivered,
    clamp_suspend_ms,
    is_given_up,
    judge,
)
from gantry.client.errors import InvalidArgumentError
from tests.unit.gantry.client.consumer.test_heldmessages import message

BATCH = [message(0), message(1), message(2)]


def test_each_end_of_a_call_has_its_meaning():
    assert judge(BATCH, None) == Verdict(())
    assert judge(BATCH, ValueError("x")) == Verdict(BATCH)
    assert judge(BATCH, ReconsumeLaterError(delay_ms=5, messages=[BATCH[1]])) == Verdict([BATCH[1]], 5)
    assert judge(BATCH, DeadLetterError()) == Verdict(BATCH, is_dead=True)
    assert judge(BATCH, DeadLetterError(messages=[BATCH[2]._replace(topic="shown")])).failed == [BATCH[2]]


def test_a_listener_that_names_no_message_of_its_batch_has_consumed_none():
    assert judge(BATCH, ReconsumeLaterError(messages=[message(9)])).failed == BATCH
    assert judge(BATCH, ReconsumeLaterError(messages=[])).failed == ()


@pytest.mark.parametrize("delay_ms", [-1, 40 * 86_400_000 + 1])
def test_a_delay_that_no_broker_accepts_is_refused(delay_ms):
    with pytest.raises(InvalidArgumentError, match=f"delay_ms: {delay_ms}"):
        ReconsumeLaterError(delay_ms=delay_ms)


def test_the_time_of_a_suspended_queue_has_limits():
    assert [clamp_suspend_ms(wanted, 1_000) for wanted in (None, 0, 500, 99_000)] == [1_000, 10, 500, 30_000]


def test_a_message_is_given_up_after_its_retries():
    assert [is_given_up(0, failures, 2) for failures in (1, 2, 3)] == [False, False, True]
    assert is_given_up(2, 1, 2), "retries before this consumer count"
    assert not is_given_up(10_000, 10_000, None)


def test_a_retry_is_shown_under_its_first_topic_with_all_failures():
    retry = message(0)._replace(topic="%RETRY%g", properties={"RETRY_TOPIC": "T"}, reconsume_times=2)
    shown = as_delivered(retry, 3)
    assert (shown.topic, shown.reconsume_times) == ("T", 5)
    assert as_delivered(message(0), 0) == message(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"batch_messages_max": 0},
        {"consume_timeout_ms": 0},
        {"retry_here_ms": 0},
        {"revoke_timeout_ms": -1},
        {"close_timeout_ms": -1},
        {"max_reconsume_times": -1},
        {"suspend_ms": 9},
        {"suspend_ms": 30_001},
        {"limits": HoldLimits(bytes_max=0)},
    ],
)
def test_a_setting_that_is_not_valid_is_refused_by_name(settings):
    name = "bytes_max" if "limits" in settings else next(iter(settings))
    with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
        ListenerSettings(**settings).check()


async def listen(message: object) -> None:
    return


class CallableListener:
    async def __call__(self, message: object) -> None:
        return


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"group": "a b"}, "group"),
        ({"topics": "T"}, "topics"),
        ({"topics": []}, "subscriptions"),
        ({"topics": {"T": "||"}}, "filter"),
        ({"listener": None}, "listener"),
        ({"listener": print}, "listener"),
        ({"batch_listener": listen}, "listener"),
        ({"settings": ListenerSettings(batch_messages_max=2)}, "batch_messages_max"),
    ],
)
async def test_an_argument_that_is_not_valid_is_refused_by_name(engine: ClientEngine, arguments, field):
    with pytest.raises(InvalidArgumentError) as refused:
        PushConsumer(engine, **{"group": "g", "topics": ["T"], "listener": listen, **arguments})
    assert refused.value.field == field
    PushConsumer(engine, "g", ["T"], CallableListener())
