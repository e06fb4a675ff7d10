"""How lag is spoken of: verdicts, the worst first, and lengths of time.

Pure; used by whatever shows a lag report.
"""

from typing import Final

# What to look at first: messages about to be lost, then groups that stand still, then those that are slow.
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

_RANK = {verdict: rank for rank, verdict in enumerate(VERDICTS)}
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def severity(verdict: str) -> int:
    """Return where a verdict stands, 0 the worst; one that a later version adds stands with UNKNOWN."""
    return _RANK.get(verdict, _RANK["UNKNOWN"])


def brief_duration(seconds: float) -> str:
    """Return a length of time as people say it: its two largest units, `2 d 3 h`, `48 s`; below 10 s with a tenth."""
    if 0 < seconds < 0.1:
        return "< 0.1 s"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    left = int(seconds)  # As clocks do: what has lasted 40.6 s has not lasted 41.
    for index, (name, size) in enumerate(_UNITS):
        if left >= size:
            rest = "" if index + 1 == len(_UNITS) else _rest(left % size, *_UNITS[index + 1])
            return f"{left // size:,} {name}{rest}"
    return "0 s"


def _rest(left: int, name: str, size: int) -> str:
    return f" {left // size} {name}" if left >= size else ""
