"""The limits of a key of its own."""

import pytest

from services.gateway.auth.principal import Principal
from services.gateway.errors import ProblemError
from services.gateway.keyrates import KeyRates
from services.gateway.limits import Limits
from services.gateway.middleware import rate_lines
from services.gateway.schemas.rights import ALL_RIGHTS, KeyLimits
from services.gateway.settings import GatewaySettings
from tests.support.virtualtime import FakeClock


def caller(**limits: int) -> Principal:
    return Principal("key-1", "n", ALL_RIGHTS, limits=KeyLimits(**limits))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limits(clock: FakeClock) -> Limits:
    return Limits(GatewaySettings(), clock)


@pytest.fixture
def rates(limits: Limits) -> KeyRates:
    return limits.key_rates


def retry_after_ms(rates: KeyRates, key: Principal) -> int | None:
    """Return the time after which the key may send; None if it may send now."""
    try:
        rates.require_send(key)
    except ProblemError as problem:
        assert problem.status == 429
        return problem.retry_after_ms
    return None


def test_a_second_of_messages_may_be_sent_at_once_and_then_one_by_one(rates: KeyRates, clock: FakeClock) -> None:
    key = caller(messages_per_s=4)
    for _ in range(4):
        rates.take_send(key, 1, 100)
    assert retry_after_ms(rates, key) == 250
    clock.advance(249)
    assert retry_after_ms(rates, key) == 1
    clock.advance(1)
    rates.take_send(key, 1, 100)
    assert retry_after_ms(rates, key) == 250


def test_a_batch_larger_than_the_rate_passes_and_the_key_waits_longer(rates: KeyRates, clock: FakeClock) -> None:
    key = caller(messages_per_s=10)
    rates.take_send(key, 50, 100)
    assert retry_after_ms(rates, key) == 4_100
    clock.advance(4_100)
    assert retry_after_ms(rates, key) is None


def test_bytes_count_beside_messages(rates: KeyRates, clock: FakeClock) -> None:
    key = caller(messages_per_s=1_000, bytes_per_s=1_000)
    rates.take_send(key, 1, 3_000)
    with pytest.raises(ProblemError, match="bytes_per_s: key key-1 sends more than 1000 content-bytes a second"):
        rates.require_send(key)
    clock.advance(3_000)
    assert retry_after_ms(rates, key) is None


def test_requests_and_long_polls_count_as_in_flight(limits: Limits, rates: KeyRates) -> None:
    key = caller(in_flight=2)
    limits.requests.take("key-1")
    rates.require_slot(key)
    limits.long_polls.take("key-1")
    with pytest.raises(ProblemError, match="in_flight: key key-1 has 2 requests in progress, and its limit is 2"):
        rates.require_slot(key)
    rates.require_slot(caller(messages_per_s=1))


def test_streams_count_as_connections(limits: Limits, rates: KeyRates) -> None:
    rates.require_stream(caller(connections=1))
    limits.streams.take("key-1")
    with pytest.raises(ProblemError, match="connections: key key-1 has 1 streams, and its limit is 1"):
        rates.require_stream(caller(connections=1))
    rates.require_stream(caller(connections=2))


def test_a_key_without_limits_is_not_counted(rates: KeyRates) -> None:
    free = Principal("key-1", "n", ALL_RIGHTS)
    for _ in range(100_000):
        rates.take_send(free, 1_000, 1_000_000)
    assert (rates.lines(free), retry_after_ms(rates, caller(messages_per_s=1))) == ([], None)


def test_the_headers_tell_each_limit_with_its_unit(limits: Limits, rates: KeyRates) -> None:
    key = caller(messages_per_s=4, bytes_per_s=1_000, in_flight=5)
    rates.take_send(key, 1, 500)
    limits.requests.take("key-1")
    policy, left = (value.decode() for _, value in rate_lines(rates.lines(key)))
    assert policy == (
        '"messages_per_s";q=4;qu="messages";w=1, "bytes_per_s";q=1000;qu="content-bytes";w=1, '
        '"in_flight";q=5;qu="concurrent-requests"'
    )
    assert left == '"messages_per_s";r=3;t=1, "bytes_per_s";r=500;t=1, "in_flight";r=4'


def test_keys_that_have_all_of_their_second_again_take_no_memory(rates: KeyRates, clock: FakeClock) -> None:
    for number in range(5_000):
        key = Principal(f"key-{number}", "n", ALL_RIGHTS, limits=KeyLimits(messages_per_s=1))
        rates.take_send(key, 1, 1)
        clock.advance(10)
    assert len(rates._full_at) < 3_000
