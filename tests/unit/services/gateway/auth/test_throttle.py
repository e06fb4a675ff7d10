"""Failed log-ins cost ever more time, and never lock a user out for long."""

from services.gateway.auth.throttle import HOLDERS_MAX, WAITS_LISTED_MAX, WINDOW_MS, LoginThrottle, Wait


def fail(throttle: LoginThrottle, times: int, user: str = "ada", address: str = "192.0.2.1", now_ms: int = 0) -> int:
    """Let log-ins fail; return the wait after them."""
    for _ in range(times):
        throttle.begin(user, address, now_ms)
    return throttle.wait_ms(user, address, now_ms)


def test_the_first_five_attempts_are_free_and_then_the_wait_doubles():
    throttle = LoginThrottle()
    assert [fail(throttle, 1) for _ in range(8)] == [0, 0, 0, 0, 1_000, 2_000, 4_000, 8_000]
    assert fail(throttle, 100) == WINDOW_MS


def test_a_wait_ends_and_old_failures_are_forgotten():
    throttle = LoginThrottle()
    fail(throttle, 7)
    assert throttle.wait_ms("ada", "192.0.2.1", 3_999) == 1
    assert throttle.wait_ms("ada", "192.0.2.1", 4_000) == 0
    assert fail(throttle, 1, now_ms=WINDOW_MS + 1) == 0


def test_a_user_at_another_address_does_not_wait_for_an_attacker():
    throttle = LoginThrottle()
    fail(throttle, 19)
    assert throttle.wait_ms("ada", "192.0.2.2", 0) == 0


def test_an_address_that_tries_many_users_waits():
    throttle = LoginThrottle()
    for number in range(20):
        throttle.begin(f"user-{number}", "192.0.2.1", 0)
    assert throttle.wait_ms("another", "192.0.2.1", 0) == 1_000


def test_a_user_who_is_attacked_from_many_addresses_waits_for_a_minute_at_most():
    throttle = LoginThrottle()
    for number in range(500):
        throttle.begin("ada", f"address-{number}", 0)
    assert throttle.wait_ms("ada", "192.0.2.9", 0) == 60_000


def test_a_success_takes_its_attempt_back():
    throttle = LoginThrottle()
    for _ in range(100):
        throttle.begin("ada", "192.0.2.1", 0)
        throttle.succeed("ada", "192.0.2.1")
    assert throttle.wait_ms("ada", "192.0.2.1", 0) == 0


def test_the_number_of_remembered_holders_is_limited():
    throttle = LoginThrottle()
    fail(throttle, 30)
    for number in range(HOLDERS_MAX):
        throttle.begin(f"user-{number}", f"address-{number}", 1)
    assert throttle.wait_ms("ada", "192.0.2.1", 1) == 0


def test_the_waits_of_users_are_listed_with_their_address_and_end():
    throttle = LoginThrottle()
    fail(throttle, 7)
    fail(throttle, 4, user="grace")
    for number in range(20):
        throttle.begin(f"user-{number}", "192.0.2.7", 0)
    assert throttle.waits(1_000) == {"ada": [Wait("192.0.2.1", 7, 3_000)]}
    assert throttle.waits(4_000) == {}


def test_a_user_who_waits_everywhere_is_listed_without_an_address_and_few_of_many_addresses():
    throttle = LoginThrottle()
    for number in range(20):
        fail(throttle, 5 + number % 3, address=f"address-{number:02}")
    waits = throttle.waits(0)["ada"]
    assert waits[0] == Wait(None, 119, 60_000)
    assert len(waits) == WAITS_LISTED_MAX
    assert {wait.wait_ms for wait in waits[1:]} == {4_000, 2_000}
