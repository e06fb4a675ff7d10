"""The retry policy of a group on the command line: `levels`, `10s,1m,1h` or `exponential:5s,2,2h`."""

import re
from collections.abc import Mapping
from typing import Any, Final

import typer

HELP: Final = (
    "When failed messages are delivered again: `levels` (the brokers' delay levels), a delay for each failure such as "
    "`10s,1m,1h`, or `exponential:INITIAL,FACTOR,MAX` such as `exponential:5s,2,2h`."
)
_EXPONENTIAL: Final = "exponential:"
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)", re.ASCII)
_FACTOR = re.compile(r"\d{1,3}", re.ASCII)
_UNIT_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def parse_policy(text: str) -> dict[str, Any]:
    """Return the policy in the contract's form. Raises BadParameter."""
    if text == "levels":
        return {"kind": "levels"}
    if not text.startswith(_EXPONENTIAL):
        return {"kind": "delays", "delays_ms": [_duration_ms(part, text) for part in text.split(",")]}
    parts = text.removeprefix(_EXPONENTIAL).split(",")
    if len(parts) != 3 or not _FACTOR.fullmatch(parts[1]):
        raise _bad(text, "give INITIAL,FACTOR,MAX, such as exponential:5s,2,2h")
    initial_ms, max_ms = _duration_ms(parts[0], text), _duration_ms(parts[2], text)
    return {"kind": "exponential", "initial_ms": initial_ms, "multiplier": int(parts[1]), "max_ms": max_ms}


def policy_text(policy: Mapping[str, Any] | None) -> str:
    """Return a policy of the contract as `parse_policy` reads it."""
    if policy is None:
        return "each broker keeps its own"
    if policy["kind"] == "levels":
        return "levels"
    if policy["kind"] == "delays":
        return ",".join(map(_duration_text, policy["delays_ms"]))
    initial, longest = _duration_text(policy["initial_ms"]), _duration_text(policy["max_ms"])
    return f"{_EXPONENTIAL}{initial},{policy['multiplier']},{longest}"


def _duration_ms(part: str, text: str) -> int:
    match = _DURATION.fullmatch(part)
    if match is None:
        raise _bad(text, f"{part!r} is not a duration such as 500ms, 10s, 1m, 2h or 1d")
    return int(match[1]) * _UNIT_MS[match[2]]


def _duration_text(duration_ms: int) -> str:
    unit = next(unit for unit, length_ms in _UNIT_MS.items() if duration_ms % length_ms == 0)
    return f"{duration_ms // _UNIT_MS[unit]}{unit}"


def _bad(text: str, reason: str) -> typer.BadParameter:
    return typer.BadParameter(f"--retry-policy {text}: {reason}")
