"""Objectives of groups as requests give them, and as the audit trail has them."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.reports import moment_of
from services.gateway.schemas.times import format_moment, parse_time_ms

ALL_TOPICS = ""
"""Stands for all topics of a group in place of a topic."""

LagSeconds = Annotated[float, Meta(gt=0, le=31_622_400)]
LagMessages = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Reason = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]


class ObjectiveChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of an objective; fields that it does not name stay, and null removes a value."""

    max_lag_seconds: LagSeconds | UnsetType | None = UNSET
    max_lag_messages: LagMessages | UnsetType | None = UNSET
    ignore: bool | UnsetType = UNSET
    ignore_until: str | UnsetType | None = UNSET
    reason: Reason | UnsetType | None = UNSET

    def applied_to(self, present: dict[str, Any], *, now: datetime) -> dict[str, Any]:
        """Return the columns of the objective with this change.

        Raises:
            InvalidValueError: `ignore_until` is not a valid time, has passed, or is given without `ignore`.
        """
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        until = given.get("ignore_until")
        if until is not None:
            moment = moment_of(parse_time_ms(until, "/ignore_until"))
            if moment <= now:
                raise InvalidValueError("/ignore_until", until, f"is in the past: it is {format_moment(now)} now")
            given["ignore_until"] = moment
        wanted = present | given
        ended = present["ignore_until"]
        if given.get("ignore") and until is None and ended is not None and ended <= now:
            # This time ended an earlier ignore; if it stayed, it would end the new one at once.
            wanted["ignore_until"] = None
        if not wanted["ignore"]:
            if until is not None:
                raise InvalidValueError("/ignore_until", until, "needs `ignore` to be true")
            wanted["ignore_until"] = None
        return wanted


NOTHING: dict[str, Any] = {
    "max_lag_seconds": None,
    "max_lag_messages": None,
    "ignore": False,
    "ignore_until": None,
    "reason": None,
}
"""The columns of an objective without values."""


def objective_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return an objective's columns as answers and the audit trail show them."""
    until = facts["ignore_until"]
    return {**facts, "ignore_until": None if until is None else format_moment(until)}
