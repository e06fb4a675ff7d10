"""Bodies of the operations on dead letters, as typed structs."""

from typing import Annotated, Any, Literal

import msgspec

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.times import parse_time_ms

MESSAGE_IDS_MAX = 1_000
RATE_MAX = 1_000
RATE_DEFAULT = 100


class LetterSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The letters to send again, by properties; each that is named must match."""

    topic: str | None = None
    tag: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None

    def times_ms(self) -> tuple[int | None, int | None]:
        """Return `from` and `to` (wall ms). Raises InvalidValueError."""
        start_ms = None if self.from_ is None else parse_time_ms(self.from_, "/filter/from")
        end_ms = None if self.to is None else parse_time_ms(self.to, "/filter/to")
        if start_ms is not None and end_ms is not None and start_ms >= end_ms:
            raise InvalidValueError("/filter/to", self.to, f"is not after /filter/from, {self.from_}")
        return start_ms, end_ms


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to send dead letters again."""

    message_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MESSAGE_IDS_MAX)] | None = None
    filter: LetterSelection | None = None
    to: Literal["retry", "origin"] = "retry"
    rate_per_s: Annotated[int, msgspec.Meta(ge=1, le=RATE_MAX)] = RATE_DEFAULT
    dry_run: bool = False

    def check(self) -> None:
        """Raise InvalidValueError unless the letters are named in exactly one way."""
        given: Any = self.message_ids
        if (given is None) == (self.filter is None):
            reason = "is missing, and so is /filter" if given is None else "is given beside /filter; name only one"
            raise InvalidValueError("/message_ids", given, reason)
