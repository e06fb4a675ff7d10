"""Decides when a message is due, and where it waits; pure.

A producer asks for a time with one of these properties; the first one in this order counts: TIMER_DELAY_SEC (seconds
from now), TIMER_DELAY_MS (milliseconds from now), TIMER_DELIVER_MS and __STARTDELIVERTIME (a time in ms). A message
with a delay level (DELAY) waits for the level, and these properties are removed from it.

A message waits at a whole second (`TIMER_OUT_MS`) and is delivered when that second is over. A time of exactly a second
therefore waits at the second before.

Source: RocketMQ 5.3 broker/util/HookUtils; __STARTDELIVERTIME is a property of the ONS clients.
"""

import re
from collections.abc import Mapping, MutableMapping
from typing import Final

from gantry.model.propertyname import PropertyName
from gantry.storeformat.timerfiles import SECOND_MS

REQUESTS: Final = (
    PropertyName.TIMER_DELAY_SEC,
    PropertyName.TIMER_DELAY_MS,
    PropertyName.TIMER_DELIVER_MS,
    PropertyName.START_DELIVER_TIME,
)
"""The properties with which a producer asks for a time, in the order in which they count."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_FROM_NOW = {PropertyName.TIMER_DELAY_SEC: SECOND_MS, PropertyName.TIMER_DELAY_MS: 1}


def find_delivery_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return the time (ms) at which a message should be delivered, perhaps in the past; None if it asks for none.

    Raises:
        ValueError: The value of the property is no whole number; names the property.
    """
    for name in REQUESTS:
        text = properties.get(name)
        if text is None:
            continue
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(f"property {name}={text[:64]}: is not a whole number of at most 18 digits")
        unit_ms = _FROM_NOW.get(name)
        return int(text) if unit_ms is None else now_ms + int(text) * unit_ms
    return None


def has_delay_level(properties: Mapping[str, str]) -> bool:
    """Return whether a message asks for a delay level, which comes before a set time."""
    text = properties.get(PropertyName.DELAY, "")
    return _NUMBER.fullmatch(text) is not None and int(text) > 0


def drop_requests(properties: MutableMapping[str, str]) -> None:
    """Remove what asks for a time."""
    for name in REQUESTS:
        properties.pop(name, None)


def waiting_second_ms(delivery_ms: int) -> int:
    """Return the start (ms) of the second at which a message waits that is delivered at `delivery_ms`."""
    floor_ms = delivery_ms // SECOND_MS * SECOND_MS
    return floor_ms - SECOND_MS if floor_ms == delivery_ms else floor_ms


def next_stop_ms(due_ms: int, now_ms: int, window_ms: int) -> tuple[int, bool]:
    """Return the second (ms) of the slot in which a message waits, and whether it is rolled.

    A message beyond the window waits for a part of its time, and is then put back into the timer's queue.

    Args:
        due_ms: The second at which the message is due.
        now_ms: The present second.
        window_ms: The window, a multiple of a second.
    """
    beyond_ms = due_ms - now_ms - window_ms
    if beyond_ms < 0:
        return due_ms, False
    seconds = window_ms // SECOND_MS
    # A short rest after a whole window would leave little time for the next stop.
    return now_ms + (seconds // 2 if beyond_ms < seconds // 3 * SECOND_MS else seconds) * SECOND_MS, True
