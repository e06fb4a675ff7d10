"""The output formats of commands."""

import json

import pytest

from gantry.cli.formatting import cell, print_items, print_json, print_table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        ([], "-"),
        (["a", "b"], "a, b"),
        ({"origin": "EWR"}, "origin=EWR"),
        ("42", "42"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_cells(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_without_a_terminal_each_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["topic", "body"], [["FLIGHTS", "x" * 300], ["[bold]", None]], empty="none")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["FLIGHTS", "x" * 300]
    assert lines[2].split() == ["[bold]", "-"]


def test_items_are_whole_as_json_and_some_of_their_fields_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"id": 1, "name": "a", "more": {"deep": True}}, {"id": 2, "name": None, "more": {}}]
    print_items(items, ["name", "id"], empty="none", as_json=True)
    assert json.loads(capsys.readouterr().out) == items
    print_items([], ["name", "id"], empty="none", as_json=True)
    assert capsys.readouterr().out == "[]\n"
    print_items(items, ["name", "id"], empty="none", as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["name", "id"], ["a", "1"], ["-", "2"]]
    print_items(items[:1], ["twice"], row=lambda item: [item["id"] * 2], empty="none", as_json=False)
    assert capsys.readouterr().out.split() == ["twice", "2"]


def test_an_empty_table_prints_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["topic"], [], empty="there are no topics")
    assert capsys.readouterr().out == "there are no topics\n"


def test_json_output_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"body": "é\x1b"})
    assert json.loads(capsys.readouterr().out) == {"body": "é\x1b"}
