"""API keys: authentication and rights."""

import re

import pytest

from services.gateway.auth.keyring import EarlierSecret, KeyRecord, KeyRing, digest_of, make_key
from services.gateway.auth.principal import NOBODY, NamePattern, NamePatterns, Principal
from services.gateway.auth.tickets import Tickets
from services.gateway.errors import ProblemError
from services.gateway.quotas import KEY, Quota
from services.gateway.schemas.rights import ALL_RIGHTS, ConsumeRights, Rights
from tests.support.callers import callers_of
from tests.support.virtualtime import FakeClock


def record(key: str, key_id: str = "key-1", rights: Rights = ALL_RIGHTS) -> KeyRecord:
    return KeyRecord(key_id, digest_of(key), "name", rights)


def ring(*records: KeyRecord) -> KeyRing:
    keys = KeyRing()
    keys.replace(records)
    return keys


def test_a_key_is_found_by_its_id():
    keys = ring(record("gk_a"))
    assert keys.authenticate(b"Bearer gk_a").key_id == "key-1"
    assert keys.authenticate("bearer gk_a").key_id == "key-1"
    assert keys.take_used() == {"key-1"}
    assert keys.take_used() == set()


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer gk_b", b"Basic gk_a", b"gk_a", b"Bearer gk_a x", b"Bearer \xff"],
)
def test_any_other_credential_is_401_with_a_challenge(header):
    with pytest.raises(ProblemError) as caught:
        ring(record("gk_a")).authenticate(header)
    assert caught.value.status == 401
    assert "WWW-Authenticate" in caught.value.headers


def test_a_ring_that_was_never_filled_rejects_no_key_as_wrong():
    with pytest.raises(ProblemError) as caught:
        KeyRing().authenticate(b"Bearer gk_a")
    assert caught.value.status == 503


def test_a_revoked_key_is_rejected():
    keys = ring(record("gk_a"), record("gk_b", "key-2"))
    first = keys.authenticate(b"Bearer gk_a")
    keys.remove("key-1")
    assert first.is_revoked
    assert keys.principal_of("key-1") is None
    with pytest.raises(ProblemError):
        keys.authenticate(b"Bearer gk_a")
    held = keys.authenticate(b"Bearer gk_b")
    assert not keys.replace(keys.records())
    assert not held.is_revoked
    assert keys.replace([])
    assert held.is_revoked
    with pytest.raises(ProblemError):
        keys.authenticate(b"Bearer gk_b")


def test_keys_that_were_read_before_a_change_do_not_undo_it():
    keys = ring(record("gk_a"), record("gk_b", "key-2"))
    keys.note_changes()
    read_before = keys.records()
    keys.remove("key-1")
    keys.add(record("gk_c", "key-3"))
    made = keys.authenticate(b"Bearer gk_c")
    assert not keys.replace(read_before)
    assert not made.is_revoked
    assert keys.authenticate(b"Bearer gk_c") is made
    with pytest.raises(ProblemError):
        keys.authenticate(b"Bearer gk_a")
    # Rows that are read from now on include the change.
    keys.note_changes()
    keys.replace([record("gk_a")])
    assert [each.id for each in keys.records()] == ["key-1"]


def test_changed_rights_take_effect_at_once():
    keys = ring(record("gk_a", rights=Rights(publish=("A",))))
    before = keys.authenticate(b"Bearer gk_a")
    keys.replace([record("gk_a", rights=Rights(publish=("B",))), record("gk_b", "key-2")])
    assert before.may_publish("A")
    assert not keys.authenticate(b"Bearer gk_a").may_publish("A")


def test_keys_are_256_random_bits():
    assert len({make_key() for _ in range(100)}) == 100
    assert len(make_key()) == len("gk_") + 43


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", "anything%|", None),
        ("A", "A", "AB"),
        ("A*", "A", "BA"),
        ("*A", "BA", "AB"),
        ("A*B**C", "AxBC", "ABCD"),
        ("a|b", "a|b", "a"),
    ],
)
def test_patterns(pattern, matching, other):
    principal = Principal("key-1", "n", Rights(publish=(pattern,)))
    assert principal.may_publish(matching)
    if other is not None:
        assert not principal.may_publish(other)
        with pytest.raises(ProblemError) as caught:
            principal.require_publish(other)
        assert caught.value.status == 403


@pytest.mark.parametrize("name", ["A", "AA", "ABA", "AXXB", "", "AB", "BA", "A%|B", "AAB", "ABAB", "XABAB"])
@pytest.mark.parametrize("pattern", ["A*A", "A*B", "*A*", "**", "A**", "*AB*AB", "A*B*", "A*A*B", "AB", "*B*A*"])
def test_a_pattern_matches_like_the_regular_expression(pattern, name):
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    assert NamePattern(pattern).matches(name) is (re.fullmatch(expression, name, re.DOTALL) is not None)


class CountedName(str):
    """A name that counts how often it is searched."""

    __slots__ = ()
    searches = 0

    def find(self, *place):
        CountedName.searches += 1
        return str.find(self, *place)


def test_a_pattern_is_matched_in_linear_time():
    """Fifty `*a` against a name of many `a` took a regular expression longer than any caller waits."""
    pattern = NamePattern("*a" * 50 + "b")
    CountedName.searches = 0
    assert not pattern.matches(CountedName("a" * 255 + "c"))
    assert NamePattern("*a" * 50 + "*b*").matches(CountedName("a" * 255)) is False
    assert CountedName.searches <= 51


def test_overlong_names_are_not_cached():
    patterns = NamePatterns(["A*"])
    assert patterns.matches("A" * 256)
    assert patterns.matches("A" * 255)
    assert list(patterns._known) == ["A" * 255]


def test_consuming_needs_topic_and_group():
    principal = Principal("key-1", "n", Rights(consume=ConsumeRights(topics=("T*",), groups=("G",))))
    principal.require_consume("T1", "G")
    assert not principal.may_consume("T1", "H")
    assert not principal.may_consume("X", "G")
    assert principal.may_see_topic("T1")
    assert principal.may_see_group("G")
    assert not principal.may_publish("T1")
    assert not NOBODY.may_see_anything()
    with pytest.raises(ProblemError):
        principal.require_admin()


@pytest.mark.parametrize(
    "topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC"]
)
def test_system_topics_are_read_by_admins_only_and_consumed_by_nobody(topic):
    for name in ("*", topic):
        principal = Principal("key-1", "n", Rights(consume=ConsumeRights(topics=(name,), groups=("*",))))
        for require in (principal.require_read, lambda one, by=principal: by.require_consume(one, "G")):
            with pytest.raises(ProblemError) as refused:
                require(topic)
            assert refused.value.status == 403
        assert not principal.may_read(topic)
    admin = Principal("key-2", "n", ALL_RIGHTS)
    admin.require_read(topic)
    with pytest.raises(ProblemError, match="belongs to the system"):
        admin.require_consume(topic, "G")


def some_tickets() -> Quota:
    return Quota("tickets", KEY, each_max=10, total_max=10)


def test_a_ticket_works_once_and_expires_soon():
    clock, keys = FakeClock(), ring(record("gk_a"))
    tickets = Tickets(callers_of(keys, clock), some_tickets(), clock=clock)
    first, second, third = (tickets.give(keys.authenticate(b"Bearer gk_a")) for _ in range(3))
    assert first.expires_at_ms == clock.now_ms() + 60_000
    clock.advance(59_999)
    assert tickets.redeem(first.ticket).key_id == "key-1"
    keys.remove("key-1")
    for ticket in (first.ticket, second.ticket, "", "x"):
        with pytest.raises(ProblemError) as caught:
            tickets.redeem(ticket)
        assert caught.value.status == 401
    clock.advance(1)
    keys.replace([record("gk_a")])
    with pytest.raises(ProblemError):
        tickets.redeem(third.ticket)


def test_open_tickets_of_a_key_leave_room_for_others():
    clock, keys = FakeClock(), ring(record("gk_a"), record("gk_b", key_id="key-2"))
    tickets = Tickets(callers_of(keys, clock), Quota("tickets", KEY, each_max=2, total_max=3), clock=clock)
    greedy, other = (keys.authenticate(b"Bearer " + key) for key in (b"gk_a", b"gk_b"))
    first, _ = tickets.give(greedy), tickets.give(greedy)
    for principal, status in ((greedy, 429), (other, None), (other, 503)):
        if status is None:
            tickets.give(principal)
            continue
        with pytest.raises(ProblemError) as caught:
            tickets.give(principal)
        assert caught.value.status == status
    tickets.redeem(first.ticket)
    tickets.give(greedy)
    clock.advance(60_000)
    for principal in (greedy, greedy, other):
        tickets.give(principal)


def test_a_key_without_rights_gets_no_ticket():
    metrics_only = KeyRecord("key-2", digest_of("gk_b"), "metrics", Rights(metrics=True))
    keys = ring(metrics_only)
    with pytest.raises(ProblemError) as caught:
        Tickets(callers_of(keys, FakeClock()), some_tickets(), clock=FakeClock()).give(
            keys.authenticate(b"Bearer gk_b")
        )
    assert caught.value.status == 403


def expiring(clock: FakeClock, *records: KeyRecord) -> KeyRing:
    keys = KeyRing(clock)
    keys.replace(records)
    return keys


def test_a_key_is_rejected_from_its_end_on():
    clock = FakeClock()
    keys = expiring(clock, KeyRecord("key-1", digest_of("gk_a"), "n", ALL_RIGHTS, clock.now_ms() + 1_000))
    held = keys.authenticate(b"Bearer gk_a")
    clock.advance(999)
    keys.end_expired()
    assert keys.authenticate(b"Bearer gk_a") is held
    assert not held.is_revoked
    clock.advance(1)
    with pytest.raises(ProblemError) as caught:
        keys.authenticate(b"Bearer gk_a")
    assert caught.value.status == 401
    assert keys.principal_of(held.credential) is None
    keys.end_expired()
    assert held.is_revoked


def test_an_earlier_secret_works_for_the_overlap_and_what_it_opened_ends_with_it():
    clock = FakeClock()
    keys = expiring(clock, KeyRecord("key-1", digest_of("gk_a"), "n", ALL_RIGHTS))
    old = keys.authenticate(b"Bearer gk_a")
    earlier = (EarlierSecret(digest_of("gk_a"), clock.now_ms() + 1_000),)
    keys.add(KeyRecord("key-1", digest_of("gk_b"), "n", ALL_RIGHTS, earlier=earlier))
    assert not old.is_revoked
    assert keys.principal_of(old.credential) is not None
    new = keys.authenticate(b"Bearer gk_b")
    assert keys.authenticate(b"Bearer gk_a").key_id == new.key_id == "key-1"
    clock.advance(1_000)
    with pytest.raises(ProblemError):
        keys.authenticate(b"Bearer gk_a")
    assert keys.principal_of(old.credential) is None
    assert keys.principal_of(new.credential) is new
    keys.add(KeyRecord("key-1", digest_of("gk_b"), "n", ALL_RIGHTS))
    assert keys.principal_of(old.credential) is None


def test_a_secret_that_a_rotation_ends_at_once_is_revoked():
    keys = ring(record("gk_a"))
    old = keys.authenticate(b"Bearer gk_a")
    keys.add(record("gk_b"))
    assert old.is_revoked
    assert keys.principal_of(old.credential) is None
    assert keys.principal_of("key-1") is keys.authenticate(b"Bearer gk_b")
