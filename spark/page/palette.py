"""The colours of charts, and the variables of the style sheet that replace them.

A chart's colours are attributes of its SVG. The style sheet selects each colour (`[fill="#0b5cad"]`) and replaces it by
a variable. So one picture works on a light screen, on a dark screen and on paper. No two colours may be equal.
"""

from typing import Final

INK: Final = "#1d2127"
MUTED: Final = "#5b636e"
GRID: Final = "#dfe3e8"
ACCENT: Final = "#0b5cad"
SECOND: Final = "#a04a00"
CRITICAL: Final = "#b3261e"
WARNING: Final = "#8f5b00"
QUIET: Final = "#66707c"
GOOD: Final = "#1f7040"

# Colour → (variable, light, dark). The dark ones have the same contrast to the dark background.
VARIABLES: Final = {
    INK: ("ink", INK, "#e8eaed"),
    MUTED: ("muted", MUTED, "#a3abb5"),
    GRID: ("grid", GRID, "#363c44"),
    ACCENT: ("accent", ACCENT, "#6fb1f5"),
    SECOND: ("second", SECOND, "#f0a35e"),
    CRITICAL: ("critical", CRITICAL, "#ff8f85"),
    WARNING: ("warning", WARNING, "#e8b24a"),
    QUIET: ("quiet", QUIET, "#8f98a3"),
    GOOD: ("good", GOOD, "#6fce92"),
}

# Verdict → (colour, sign, words). The sign and the words have the meaning of the colour, for readers who can't see it.
VERDICTS: Final = {
    "RETENTION_RISK": (CRITICAL, "▲", "retention risk"),
    "STALLED": (CRITICAL, "▲", "stalled"),
    "STOPPED": (CRITICAL, "▲", "stopped"),
    "OVER_OBJECTIVE": (CRITICAL, "▲", "over objective"),
    "RETRY_LOOP": (WARNING, "◆", "retry loop"),
    "HOT_QUEUE": (WARNING, "◆", "hot queue"),
    "LAGGING": (WARNING, "◆", "lagging"),
    "REWOUND": (WARNING, "◆", "rewound"),
    "NO_CONSUMER": (WARNING, "◆", "no consumer"),
    "UNKNOWN": (QUIET, "?", "unknown"),
    "PAUSED": (QUIET, "■", "paused"),
    "IGNORED": (QUIET, "○", "ignored"),
    "OK": (GOOD, "✓", "OK"),
}


def verdict_style(verdict: str) -> tuple[str, str, str]:
    """Return a verdict's colour, sign and words. A verdict of a later version looks like UNKNOWN and keeps its name."""
    known = VERDICTS.get(verdict)
    if known is not None:
        return known
    return QUIET, "?", verdict.replace("_", " ").lower()
