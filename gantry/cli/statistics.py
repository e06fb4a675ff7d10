"""The tables of `gantry topic stats` and `gantry group stats`."""

from typing import Any, Final

from gantry.cli.formatting import print_json, print_table

_WINDOWS: Final = ("minute", "hour", "day")


def print_statistics(found: dict[str, Any], *, as_json: bool) -> None:
    """Print the traffic of a topic or a group: the sums over all brokers, or the rows of those that answered."""
    if as_json:
        print_json(found)
        return
    rows = found["items"] if found["sums"] is None else found["sums"]
    columns = ["topic", "kind", "group", "broker", *(f"{window}" for window in _WINDOWS), "per_s", "bytes_per_s"]
    print_table(columns, [_row(row) for row in rows], empty="no messages since the start of the brokers")
    for reason in found["missing"]:
        print(f"not counted: {reason}")


def _row(row: dict[str, Any]) -> list[object]:
    counts = [row[window]["messages"] for window in _WINDOWS]
    names = [row["topic"], row["kind"], row["group"], row["broker"] or "all"]
    return [*names, *counts, row["minute"]["messages_per_s"], row["minute"]["bytes_per_s"]]
