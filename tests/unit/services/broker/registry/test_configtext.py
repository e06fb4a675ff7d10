"""The text of large tables: each entry is encoded once, in slices, with the same result as a single pass."""

from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from services.broker.registry import configtext
from services.broker.registry.configtext import ConfigText, EntryTexts


class Table:
    """A table that counts how often an entry is encoded."""

    def __init__(self, count: int = 0) -> None:
        self.values: dict[str, Any] = {}
        self.changed: OrderedDict[str, None] = OrderedDict()
        self.found: list[str] = []
        self.texts = EntryTexts(self.changed, self._find)
        self.text = ConfigText({"version": lambda: len(self.values), "table": self.texts})
        for number in range(count):
            self.put(f"key{number}", number)

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value
        self.changed[key] = None

    def remove(self, key: str) -> None:
        del self.values[key]
        self.changed[key] = None

    def _find(self, key: str) -> Any:
        self.found.append(key)
        return self.values.get(key)

    def decoded(self) -> Any:
        return msgspec.json.decode(self.text.encode())


def test_only_changed_entries_are_encoded_again() -> None:
    table = Table(100)
    assert table.decoded() == {"version": 100, "table": table.values}
    table.found.clear()
    table.put("key7", "new")
    table.put("more", {"a": {}, "b": [1]})
    table.remove("key3")
    assert table.decoded() == {"version": 100, "table": table.values}
    assert table.found == ["key7", "more", "key3"]


def test_an_empty_table_is_an_empty_object() -> None:
    table = Table(1)
    assert table.text.encode() == b'{\n\t"version":1,\n\t"table":{\n\t\t"key0":0\n\t}\n}'
    table.remove("key0")
    assert table.text.encode() == b'{\n\t"version":0,\n\t"table":{}\n}'


def test_the_work_of_a_slice_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configtext, "SLICE_BYTES", 100)
    table = Table(100)
    done = [len(table.found) for _ in table.text.refresh()]
    assert len(done) == 9
    assert max(after - before for before, after in zip([0, *done], done, strict=False)) <= 13


def test_a_change_between_two_slices_is_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configtext, "SLICE_BYTES", 100)
    table = Table(100)
    slices = table.text.refresh()
    next(slices)
    table.put("key0", "late")
    table.remove("key99")
    for _ in slices:
        pass
    assert msgspec.json.decode(b"".join(table.text.take())) == {"version": 99, "table": table.values}


def test_a_table_that_changes_continuously_is_still_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configtext, "SLICE_BYTES", 1)
    table = Table(10)
    for _ in table.text.refresh():
        for number in range(10):
            table.put(f"key{number}", len(table.found))
    assert msgspec.json.decode(b"".join(table.text.take()))["table"] == table.values


def test_a_cancelled_save_leaves_nothing_out_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configtext, "SLICE_BYTES", 100)
    table = Table(100)
    slices = table.text.refresh()
    next(slices)
    del slices
    assert table.decoded()["table"] == table.values


def test_pieces_already_returned_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configtext, "PIECE_BYTES", 50)
    table = Table(20)
    before = table.text.encode()
    pieces = table.text.take()
    first = next(pieces)
    table.put("key19", "changed")
    table.text.encode()
    rest = list(pieces)
    assert b"".join([first, *rest]) == before
    assert len(rest) == 4
