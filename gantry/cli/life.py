"""The life of a message as text."""

from typing import Any

from gantry.cli.formatting import cell, print_table


def print_life(life: dict[str, Any]) -> None:
    """Print the life of a message: its events, its groups, and what is not known."""
    print(f"message {cell(life['message_id'])} of topic {cell(life['topic'])}\n")
    columns = ["at", "kind", "attempt", "group", "broker", "client", "detail"]
    rows = [[event[column] for column in columns] for event in life["events"]]
    print_table(["time", "event", *columns[2:]], rows, empty="no event is known")
    print()
    groups = [[group[column] for column in ("group", "state", "since", "why")] for group in life["groups"]]
    print_table(["group", "state", "since", "why"], groups, empty="no group has consumed it or waits for it")
    if life["missing"]:
        print("\nnot known:")
        for reason in life["missing"]:
            print(f"- {cell(reason)}")
