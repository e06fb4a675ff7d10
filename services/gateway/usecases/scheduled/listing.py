"""Puts the pages of several brokers together into one page by due time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gantry.remoting.bodies.timer import WaitingMessage, WaitingMessages

SECOND_MS = 1_000

Place = tuple[int, int | None]
"""A second (ms / 1000), and the place within it; None for its beginning."""


@dataclass(frozen=True, slots=True)
class MergedPage:
    """One page of all brokers.

    Attributes:
        messages: The messages by due time, each with the name of its broker.
        places: Beginning of the next page, by broker; a broker that has no more is missing.
    """

    messages: Sequence[tuple[str, WaitingMessage]]
    places: Mapping[str, Place]


def merge_pages(pages: Mapping[str, WaitingMessages], begun: Mapping[str, Place]) -> MergedPage:
    """Return the messages before the earliest second at which a broker has more than its page.

    The brokers of that second continue within it; the others begin with that second again.

    Args:
        pages: Pages of the brokers.
        begun: Places at which these pages begin.
    """
    ends = [page.next_second for page in pages.values() if page.next_second is not None]
    horizon = min(ends) if ends else None
    messages: list[tuple[str, WaitingMessage]] = []
    places: dict[str, Place] = {}
    for broker, page in pages.items():
        if horizon is not None and page.next_second == horizon:
            messages += [(broker, message) for message in page.messages]
            places[broker] = (horizon, page.next_position)
            continue
        taken = [message for message in page.messages if horizon is None or _second_of(message) < horizon]
        messages += [(broker, message) for message in taken]
        if horizon is not None and (len(taken) < len(page.messages) or page.next_second is not None):
            places[broker] = begun[broker] if begun[broker][0] == horizon else (horizon, None)
    messages.sort(key=lambda pair: (pair[1].delivery_at, pair[0]))
    return MergedPage(messages, places)


def _second_of(message: WaitingMessage) -> int:
    """Return the second at which a message waits; it is delivered at its end."""
    return message.delivery_at // SECOND_MS - 1
