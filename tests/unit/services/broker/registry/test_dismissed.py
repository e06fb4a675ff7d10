"""Dismissed members of deleted groups."""

from typing import Any

import pytest

from services.broker.registry import dismissed
from services.broker.registry.dismissed import Dismissed


class Connection:
    """A connection with an identity and nothing else."""


A: Any = Connection()
B: Any = Connection()


def test_a_member_is_dismissed_from_one_group_on_one_connection() -> None:
    here, elsewhere, table = A, B, Dismissed()
    table.add("g", [(here, "a"), (here, "b"), (here, "a")])
    assert table.count == 2
    assert table.has("g", here)
    assert table.has("g", here, "a")
    assert not table.has("g", here, "c")
    assert not table.has("g", elsewhere)
    assert not table.has("other", here)


def test_members_are_forgotten_one_by_one_with_their_connection_and_with_their_group() -> None:
    first, second, table = A, B, Dismissed()
    for group in ("g", "h"):
        table.add(group, [(first, "a"), (first, "b"), (second, "c")])
    table.forget("g", first, "a")
    table.forget("g", first, "a")
    assert (table.has("g", first, "a"), table.has("g", first, "b"), table.count) == (False, True, 5)
    table.forget_connection(first)
    assert (table.has("g", first), table.has("h", first), table.count) == (False, False, 2)
    table.forget_group("g")
    table.forget("h", second, "c")
    assert not table.has("h", second)
    assert table.count == 0


def test_a_full_table_forgets_the_group_that_was_deleted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dismissed, "DISMISSED_MAX", 3)
    channel, table = A, Dismissed()
    table.add("first", [(channel, "a"), (channel, "b")])
    table.add("second", [(channel, "a")])
    table.add("third", [(channel, "a")])
    assert (table.has("first", channel), table.has("second", channel), table.has("third", channel)) == (
        False,
        True,
        True,
    )
    assert table.count == 2


def test_a_group_without_members_takes_no_room() -> None:
    table = Dismissed()
    table.add("g", [])
    table.add("h", [])
    table.forget_group("g")
    assert table.count == 0
