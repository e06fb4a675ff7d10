"""The delay levels: level n means a delay of the n-th length in the list."""

import re
from collections.abc import Sequence

LEVEL_MAX = 2**31 - 1
"""The largest number that RocketMQ reads as a level. Levels beyond the end of the list have the last length."""
LEVELS_COUNT_MAX = 1_000
"""Largest number of levels in a list."""
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse a list of lengths of time such as `1s 5s 1m 2h`.

    Returns:
        The lengths in ms. The first one belongs to level 1.

    Raises:
        ValueError: An item is not a number followed by s, m, h or d, or the list is empty or too long.
    """
    lengths: list[int] = []
    for item in text.split():
        if len(lengths) >= LEVELS_COUNT_MAX:
            raise ValueError(f"there are more than {LEVELS_COUNT_MAX} delay levels")
        match = _LEVEL.fullmatch(item)
        if match is None:
            raise ValueError(f"delay level {item!r} is not a number followed by s, m, h or d")
        lengths.append(int(match[1]) * _UNITS_MS[match[2]])
    if not lengths:
        raise ValueError("there is no delay level")
    return tuple(lengths)


DELAY_LEVELS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)


def level_of_delay(delay_ms: int, delays_ms: Sequence[int]) -> int:
    """Return the level whose delay is closest to `delay_ms` and not shorter; the longest one if all are shorter.

    Args:
        delay_ms: The wanted delay.
        delays_ms: The lengths of the levels, from level 1 on.
    """
    long_enough = [(length, level) for level, length in enumerate(delays_ms, 1) if length >= delay_ms]
    if long_enough:
        return min(long_enough)[1]
    return max((length, level) for level, length in enumerate(delays_ms, 1))[1]
