"""Sessions in memory: known until they end, wherever they end."""

from services.gateway.auth.roles import Role
from services.gateway.auth.sessionring import (
    SESSIONS_CACHED_MAX,
    SessionRecord,
    SessionRing,
    csrf_token_of,
    digest_of,
    find_cookie,
    is_csrf_token,
)
from tests.support.virtualtime import FakeClock


def record(cookie: str = "cookie", *, role: Role = Role.VIEWER, ends_in_ms: int = 60_000) -> SessionRecord:
    """Return a session of the user ada."""
    return SessionRecord(f"session-{cookie}", digest_of(cookie), "ada", role, FakeClock().now_ms() + ends_in_ms)


def test_a_session_is_known_by_its_cookie_until_it_expires():
    clock = FakeClock()
    ring = SessionRing(clock)
    ring.add(record())
    principal = ring.find("cookie")
    assert principal is not None
    assert (principal.key_id, principal.credential) == ("user:ada", "session-cookie")
    assert ring.find("another") is None
    clock.advance(60_000)
    assert ring.find("cookie") is None
    assert principal.is_revoked


def test_a_session_that_ended_elsewhere_is_dropped_and_one_that_came_meanwhile_stays():
    ring = SessionRing(FakeClock())
    ring.add(record("a"))
    ring.add(record("b"))
    asked = ring.ids()
    ring.add(record("c"))
    ring.refresh(asked, [record("b")])
    assert [ring.find(cookie) is not None for cookie in "abc"] == [False, True, True]


def test_another_role_takes_effect_and_ends_what_is_in_progress():
    ring = SessionRing(FakeClock())
    ring.add(record(role=Role.ADMIN))
    before = ring.find("cookie")
    ring.refresh(ring.ids(), [record(role=Role.VIEWER)])
    after = ring.find("cookie")
    assert before is not None
    assert after is not None
    assert (before.is_admin, before.is_revoked, after.is_admin) == (True, True, False)


def test_a_longer_life_keeps_the_principal():
    ring = SessionRing(FakeClock())
    ring.add(record())
    before = ring.find("cookie")
    ring.refresh(ring.ids(), [record(ends_in_ms=120_000)])
    assert ring.find("cookie") is before


def test_the_number_of_known_sessions_is_limited():
    ring = SessionRing(FakeClock())
    for number in range(SESSIONS_CACHED_MAX + 1):
        ring.add(record(str(number)))
    assert ring.find("0") is None
    assert ring.find(str(SESSIONS_CACHED_MAX)) is not None
    assert len(ring.ids()) == SESSIONS_CACHED_MAX


def test_a_csrf_token_belongs_to_one_session():
    assert is_csrf_token("a", csrf_token_of("a"))
    assert not is_csrf_token("a", csrf_token_of("b"))
    assert not is_csrf_token("a", "é")


def test_the_cookie_is_found_among_others():
    assert find_cookie(b"theme=dark; gantry_session=abc; x=y") == "abc"
    assert find_cookie(b"gantry_session=abc") == "abc"
    for header in (
        b"",
        b"gantry_session=",
        b"gantry_session=\xff",
        b"xgantry_session=a",
        b"gantry_session=" + b"a" * 129,
    ):
        assert find_cookie(header) is None
