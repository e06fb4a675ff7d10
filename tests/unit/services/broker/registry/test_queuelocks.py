import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gantry.model.message import MessageQueue
from services.broker.registry import queuelocks
from services.broker.registry.queuelocks import LOCK_EXPIRY_MS, QueueLocks


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def test_a_queue_has_one_owner_and_only_the_owner_unlocks_it() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "c1", [queue(0), queue(1)], 0) == [queue(0), queue(1)]
    assert locks.lock("g", "c2", [queue(1), queue(2)], 1) == [queue(2)]
    locks.unlock("g", "c2", [queue(0), queue(1), queue(9)])
    assert locks.lock("g", "c2", [queue(0), queue(1)], 2) == []
    locks.unlock("g", "c1", [queue(0)])
    assert locks.lock("g", "c2", [queue(0), queue(1)], 3) == [queue(0)]
    assert (locks.count, locks.refused, locks.taken_over) == (3, 4, 0)


def test_groups_do_not_share_locks() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "c1", [queue(0)], 0) == [queue(0)]
    assert locks.lock("h", "c2", [queue(0)], 0) == [queue(0)]
    locks.unlock("none", "c1", [queue(0)])
    locks.drop_group("g")
    assert locks.count == 1
    assert locks.lock("g", "c3", [queue(0)], 1) == [queue(0)]


def test_a_lock_expires_after_a_minute_unless_its_owner_renews_it() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [queue(0), queue(1)], 0)
    locks.lock("g", "c1", [queue(1)], 30_000)
    assert locks.lock("g", "c2", [queue(0), queue(1)], LOCK_EXPIRY_MS) == []
    assert locks.lock("g", "c2", [queue(0), queue(1)], LOCK_EXPIRY_MS + 1) == [queue(0)]
    assert locks.taken_over == 1
    assert locks.lock("g", "c1", [queue(1)], 10 * LOCK_EXPIRY_MS) == [queue(1)], "nobody took it in the meantime"


def test_a_group_is_locked_as_long_as_one_lock_lives() -> None:
    locks = QueueLocks()
    assert not locks.is_group_locked("g", 0)
    locks.lock("g", "c1", [queue(0), queue(1)], 0)
    locks.lock("g", "c2", [queue(2)], 50_000)
    assert locks.is_group_locked("g", 50_000 + LOCK_EXPIRY_MS)
    assert not locks.is_group_locked("g", 50_001 + LOCK_EXPIRY_MS)
    locks.lock("g", "c2", [queue(2)], 200_000)
    locks.unlock("g", "c2", [queue(2)])
    assert not locks.is_group_locked("g", 200_000)
    assert locks.count == 0, "a request removes what has expired in its group"


def test_groups_that_no_client_renews_leave_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuelocks, "EXPIRED_GROUPS_MAX", 2)
    locks = QueueLocks()
    for number in range(5):
        locks.lock(f"g{number}", "c", [queue(0), queue(1)], number)
    locks.lock("g0", "c", [queue(0)], 30_000)
    # A refused lock is no renewal: the group keeps its place.
    assert locks.lock("g1", "other", [queue(0)], 40_000) == []
    locks.expire(LOCK_EXPIRY_MS + 4)
    assert locks.count == 6, "one call removes two groups"
    locks.expire(LOCK_EXPIRY_MS + 4)
    assert locks.count == 4, "the lock of g4 lives one more millisecond"
    assert locks.is_group_locked("g4", LOCK_EXPIRY_MS + 4)


def test_a_deleted_topic_takes_its_locks_with_it() -> None:
    locks = QueueLocks()
    locks.lock("g", "c", [queue(0), queue(0, "U")], 0)
    locks.lock("h", "c", [queue(1)], 0)
    locks.drop_topic("T")
    assert locks.count == 1
    assert locks.lock("g", "other", [queue(0), queue(0, "U")], 1) == [queue(0)]
    assert not locks.is_group_locked("h", 1)


def test_a_full_table_refuses_new_locks_and_keeps_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuelocks, "LOCKS_MAX", 2)
    locks = QueueLocks()
    assert locks.lock("g", "c", [queue(0), queue(1), queue(2)], 0) == [queue(0), queue(1)]
    assert locks.lock("h", "c", [queue(0)], 0) == []
    assert locks.lock("g", "c", [queue(0), queue(2)], 1) == [queue(0)]
    locks.expire(2 * LOCK_EXPIRY_MS)
    assert locks.lock("h", "c", [queue(0)], 2 * LOCK_EXPIRY_MS) == [queue(0)]


GROUPS, CLIENTS = st.sampled_from(["g", "h", "i"]), st.sampled_from(["c1", "c2"])
QUEUES = st.lists(st.builds(queue, st.integers(0, 3), st.sampled_from(["T", "U"])), unique=True)


class LockModel(RuleBasedStateMachine):
    """Compares the table with a plain one that never forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks()
        self.now_ms = 0
        self.model: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def is_live(self, group: str, wanted: MessageQueue) -> bool:
        held = self.model.get((group, wanted))
        return held is not None and self.now_ms - held[1] <= LOCK_EXPIRY_MS

    @rule(ms=st.integers(0, 40_000))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(group=GROUPS, client=CLIENTS, queues=QUEUES)
    def lock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        free = [each for each in queues if not self.is_live(group, each) or self.model[group, each][0] == client]
        assert self.locks.lock(group, client, queues, self.now_ms) == free
        self.model.update({(group, each): (client, self.now_ms) for each in free})

    @rule(group=GROUPS, client=CLIENTS, queues=QUEUES)
    def unlock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        self.locks.unlock(group, client, queues)
        for each in queues:
            if self.model.get((group, each), ("", 0))[0] == client:
                del self.model[group, each]

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now_ms)

    @rule(topic=st.sampled_from(["T", "U"]))
    def drop_topic(self, topic: str) -> None:
        self.locks.drop_topic(topic)
        self.model = {key: held for key, held in self.model.items() if key[1].topic != topic}

    @invariant()
    def agrees(self) -> None:
        live = {key for key in self.model if self.is_live(*key)}
        assert len(live) <= self.locks.count <= len(self.model)
        for group in ("g", "h", "i"):
            assert self.locks.is_group_locked(group, self.now_ms) == any(key[0] == group for key in live)


TestLockModel = LockModel.TestCase
TestLockModel.settings = settings(max_examples=60, stateful_step_count=30)
