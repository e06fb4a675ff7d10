"""Output of commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

Item: TypeAlias = Mapping[str, Any]

# The width of output that goes to no terminal. Each row stays on one line, and nothing is cut off.
WIDTH_WITHOUT_TERMINAL = 1_000
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def print_json(value: Any) -> None:
    """Print a value as JSON for a program to read."""
    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under column headings, or the text `empty` if there are no rows."""
    if not rows:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    _console().print(table)


def print_items(
    items: Sequence[Item],
    columns: Sequence[str],
    *,
    empty: str,
    as_json: bool,
    row: Callable[[Item], Sequence[object]] | None = None,
) -> None:
    """Print the items of a list as JSON or as a table.

    The table shows the fields named in `columns`, or the cells that `row` returns for each item.
    """
    if as_json:
        print_json(items)
        return
    rows = [[item[name] for name in columns] if row is None else row(item) for item in items]
    print_table(columns, rows, empty=empty)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print each name and its value on a line of their own."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(cell(value)))
    _console().print(table)


def cell(value: object) -> str:
    """Return a value as text for people.

    Control characters are escaped, so that the content of a message cannot control the terminal.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{cell(key)}={cell(item)}" for key, item in value.items()) or "-"
    return str(value).translate(CONTROLS)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False, soft_wrap=False)


def message_line(message: Item) -> str:
    """Return a message in one line: time, place, tag and keys, body."""
    place = f"{message['broker']}/{message['queue_id']} {message['queue_offset']}"
    labels = " ".join(cell(part) for part in (message["tag"], *message["keys"]) if part)
    return f"{message['stored_at']}  {place}  [{labels}]  {cell(message['body'])}"
