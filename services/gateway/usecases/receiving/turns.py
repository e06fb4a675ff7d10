"""Which broker a pull asks first. Pure, but for a counter.

A pull takes messages from one broker, so that it can answer as soon as one has something. Pulls of one group and topic
begin at another broker each time: so a broker with a large backlog keeps none of the others waiting.
"""

from collections.abc import Sequence
from typing import Final

PLACES_MAX: Final = 10_000
"""Limit of the groups and topics whose turn is remembered. Beyond it all begin at their first broker again."""


def in_turn(brokers: Sequence[str], turn: int, woken_by: str | None) -> list[str]:
    """Return the brokers in the order in which a pull asks them.

    Args:
        brokers: Names of the brokers that have readable queues of the topic.
        turn: Number of the pull among those of its group and topic.
        woken_by: The broker that has just said that it has a message, which is asked first.
    """
    names = sorted(brokers)
    start = turn % len(names)
    turned = names[start:] + names[:start]
    if woken_by in turned:
        turned.remove(woken_by)
        turned.insert(0, woken_by)
    return turned


class Turns:
    """The turn of each group and topic. It only makes the order fair, so each gateway has its own.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], int] = {}

    def take(self, group: str, topic: str) -> int:
        """Return the turn of a pull."""
        if len(self._next) >= PLACES_MAX:
            self._next.clear()
        turn = self._next.get((group, topic), 0)
        self._next[group, topic] = turn + 1
        return turn
