"""The terms of lag reports: verdicts, sorted from worst to best, and the format of durations.

Pure functions. Every program that displays a lag report uses them.
"""

from typing import Final

# The order for operators: first messages that will be lost soon, then groups that do not consume, then slow groups.
VERDICTS: Final = (
    "RETENTION_RISK",
    "STALLED",
    "STOPPED",
    "OVER_OBJECTIVE",
    "RETRY_LOOP",
    "HOT_QUEUE",
    "LAGGING",
    "REWOUND",
    "NO_CONSUMER",
    "UNKNOWN",
    "PAUSED",
    "IGNORED",
    "OK",
)

NO_END: Final = "no end in sight"
"""Stands for the interval of a drain ETA without an upper end: the backlog may never be consumed."""
UNKNOWN_RANGE: Final = "unknown"

_RANK = {verdict: rank for rank, verdict in enumerate(VERDICTS)}
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def severity(verdict: str) -> int:
    """Return the rank of a verdict. 0 is the worst. A verdict of a later version has the rank of UNKNOWN."""
    return _RANK.get(verdict, _RANK["UNKNOWN"])


def brief_duration(seconds: float) -> str:
    """Return a duration as text with its two largest units: `2 d 3 h`, `48 s`. Below 10 s it has one decimal."""
    if 0 < seconds < 0.1:
        return "< 0.1 s"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    left = int(seconds)  # Round down, as clocks do: after 40.6 s, 41 s have not passed yet.
    for index, (name, size) in enumerate(_UNITS):
        if left >= size:
            rest = "" if index + 1 == len(_UNITS) else _rest(left % size, *_UNITS[index + 1])
            return f"{left // size:,} {name}{rest}"
    return "0 s"


def drain_range(low_s: float | None, high_s: float | None) -> str:
    """Return the interval of a drain ETA as text. The mean alone would hide how little is known."""
    if high_s is not None:
        ends = dict.fromkeys(brief_duration(end) for end in (low_s or 0.0, high_s))
        return " to ".join(ends)
    return UNKNOWN_RANGE if low_s is None else NO_END


def _rest(left: int, name: str, size: int) -> str:
    return f" {left // size} {name}" if left >= size else ""
