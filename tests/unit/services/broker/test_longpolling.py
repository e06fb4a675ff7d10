import pytest

from gantry.sqlfilter import SqlFilter
from gantry.storeformat.layout import UNIT
from services.broker.filter.subscriptions import MessageFilter
from services.broker.longpolling import SUSPEND_MAX_MS, WAKE_COST_MAX, HeldPull, LongPolling


class Table:
    """A table of held pulls, and the pulls that were resumed."""

    def __init__(self) -> None:
        self.properties: dict[int, bytes | None] = {}
        self.reads: list[int] = []
        self.polling = LongPolling(0, self.read)
        self.resumed: list[str] = []
        self.failed: list[Exception] = []

    def read(self, at: int) -> bytes | None:
        self.reads.append(at)
        return self.properties[at]

    def hold(
        self,
        name: str,
        *,
        offset: int = 0,
        codes: set[int] | None = None,
        sql: str | None = None,
        owner: str = "c",
        ms: int = 1000,
    ) -> None:
        held = HeldPull(
            ("T", 0),
            offset,
            MessageFilter(None if codes is None else codes.__contains__, None if sql is None else SqlFilter(sql)),
            owner,
            resume=lambda: self.resumed.append(name),
            fail=self.failed.append,
        )
        self.polling.hold(held, now_ms=0, suspend_ms=ms)


def units(*codes: int) -> bytes:
    return b"".join(UNIT.pack(0, 100, code) for code in codes)


@pytest.fixture
def table() -> Table:
    return Table()


def test_an_arrival_after_its_offset_wakes_a_pull_once(table: Table) -> None:
    table.hold("here", offset=5)
    table.hold("ahead", offset=6)
    table.polling.arrived("T", 0, 6, units(0))
    table.polling.arrived("T", 0, 6, units(0))
    table.polling.arrived("T", 1, 99, units(0))
    table.polling.arrived("U", 0, 99, units(0))
    assert table.resumed == []  # Only marked: a batch of messages wakes a pull once.
    table.polling.wake()
    table.polling.wake()
    assert table.resumed == ["here"]
    assert table.polling.count == 1


def test_only_wanted_tags_wake_a_pull(table: Table) -> None:
    table.hold("a", codes={1})
    table.hold("b", codes={2})
    table.hold("all")
    table.polling.arrived("T", 0, 1, units(2))
    table.polling.wake()
    assert table.resumed == ["b", "all"]


def test_only_messages_at_or_after_its_offset_wake_a_pull(table: Table) -> None:
    table.hold("had it", offset=9, codes={1})
    table.hold("wants it", offset=7, codes={1})
    table.hold("ahead", offset=10)
    table.polling.arrived("T", 0, 10, units(2, 2, 1, 2))
    table.polling.wake()
    assert table.resumed == ["wants it"]


def test_pulls_end_at_their_deadline_in_order_and_never_early(table: Table) -> None:
    table.hold("late", ms=1000)
    table.hold("soon", ms=150)
    table.hold("at once", ms=-5)
    table.polling.sweep(99)
    assert table.resumed == []
    table.polling.sweep(199)
    assert table.resumed == ["at once"]
    table.polling.sweep(999)
    assert table.resumed == ["at once", "soon"]
    table.polling.sweep(1100)
    assert table.resumed == ["at once", "soon", "late"]
    assert table.polling.count == 0


def test_a_very_late_sweep_finds_all_overdue_pulls(table: Table) -> None:
    table.hold("one", ms=100)
    table.hold("two", ms=5000)
    table.polling.sweep(10_000_000)
    assert table.resumed == ["one", "two"]


def test_a_client_cannot_hold_a_pull_for_ever(table: Table) -> None:
    table.hold("greedy", ms=2**62)
    table.polling.sweep(SUSPEND_MAX_MS + 100)
    assert table.resumed == ["greedy"]


def test_a_closed_connection_removes_its_pulls(table: Table) -> None:
    table.hold("gone", owner="x")
    table.hold("stays", owner="y")
    table.polling.forget("x")
    table.polling.forget("nobody")
    table.polling.arrived("T", 0, 1, units(0))
    table.polling.wake()
    assert table.resumed == ["stays"]
    assert table.polling.count == 0


def test_resume_all_empties_the_table(table: Table) -> None:
    table.hold("one", owner="x")
    table.hold("two", owner="y")
    table.polling.resume_all()
    assert table.resumed == ["one", "two"]
    table.polling.sweep(5000)
    assert table.polling.count == 0


def test_a_failing_pull_does_not_affect_others(table: Table) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    for number, resume in enumerate(
        (lambda: table.resumed.append("first"), fail, lambda: table.resumed.append("last"))
    ):
        held = HeldPull(("T", 0), 0, MessageFilter(), f"c{number}", resume=resume, fail=table.failed.append)
        table.polling.hold(held, now_ms=0, suspend_ms=1000)
    table.polling.arrived("T", 0, 1, units(0))
    table.polling.wake()
    assert table.resumed == ["first", "last"]
    assert [str(error) for error in table.failed] == ["no"]
    assert (table.polling.failures, table.polling.count) == (1, 0)


def places(*positions: int) -> bytes:
    return b"".join(UNIT.pack(at, 100, 0) for at in positions)


def test_only_a_message_that_matches_wakes_a_pull_with_sql(table: Table) -> None:
    for name in ("first", "second"):
        table.hold(name, offset=3, sql="a > 5")
    table.hold("other", offset=3, sql="a = 2")
    table.properties = {100: b"a\x016", 200: b"a\x015", 300: b"a\x012", 400: b"a\x017"}
    table.polling.arrived("T", 0, 5, places(100, 200, 300))  # The message at 100 has offset 2.
    table.polling.wake()
    assert table.resumed == ["other"]
    assert table.reads == [200, 300], "each message is read once, for all pulls"
    table.polling.arrived("T", 0, 6, places(400))
    table.polling.wake()
    assert table.resumed == ["other", "first", "second"]


def test_beyond_its_budget_or_without_the_properties_an_arrival_wakes_pulls_that_look_themselves(table: Table) -> None:
    table.hold("costly", sql=" OR ".join(["a = 5"] * 200))
    table.properties = dict.fromkeys(range(20), b"a\x016")
    table.polling.arrived("T", 0, 5, places(*range(5)))
    assert table.polling.count == 1
    assert WAKE_COST_MAX < 20 * 799
    table.polling.arrived("T", 0, 25, places(*range(20)))
    assert table.polling.count == 0
    table.hold("unread", sql="a = 5")
    table.properties = {7: None}
    table.polling.arrived("T", 0, 26, places(7))
    assert table.polling.count == 0
