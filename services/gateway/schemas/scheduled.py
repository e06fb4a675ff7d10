"""Bodies of the operations on scheduled messages, as typed structs."""

import msgspec

from gantry.model.errors import NO_VALUE, InvalidValueError
from services.gateway.schemas.times import parse_duration_ms, parse_time_ms


class NewTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new time of a message: exactly one of both."""

    deliver_at: str | None = None
    delay: str | None = None

    def times_ms(self, *, delay_max_ms: int) -> tuple[int | None, int | None]:
        """Return the delay and the time of delivery (wall ms); one of them is None.

        Raises:
            InvalidValueError: Both are given, or none, or one is not valid.
        """
        if self.delay is not None and self.deliver_at is not None:
            raise InvalidValueError("/deliver_at", self.deliver_at, "can't be given together with `delay`")
        if self.delay is not None:
            return parse_duration_ms(self.delay, "/delay", max_ms=delay_max_ms), None
        if self.deliver_at is None:
            raise InvalidValueError("/deliver_at", NO_VALUE, "is missing, and so is /delay")
        return None, max(0, parse_time_ms(self.deliver_at, "/deliver_at"))
