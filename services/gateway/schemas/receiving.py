"""Bodies of the operations on messages with receipts, as typed structs."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.filters import Filter
from services.gateway.schemas.times import parse_duration_ms

PULL_DEFAULT: Final = 32
PULL_MAX: Final = 256
RECEIPTS_MAX: Final = 1_000
"""Limit of the receipts of a request, as of the messages of a batch."""
WAIT_MS_MAX: Final = 30_000
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3_600_000

Receipts = Annotated[list[str], Meta(min_length=1, max_length=RECEIPTS_MAX)]
AttemptId = Annotated[str, Meta(pattern=r"^[!-~]{1,128}\Z")]


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pull."""

    topic: str
    filter: Filter = "*"
    max: Annotated[int, Meta(ge=1, le=PULL_MAX)] = PULL_DEFAULT
    wait: str = "0s"
    invisible: str = "60s"
    order: Literal["concurrent", "orderly"] = "concurrent"
    attempt_id: AttemptId | None = None

    @property
    def wait_ms(self) -> int:
        """The time to wait for a message in ms. Raises InvalidValueError."""
        return parse_duration_ms(self.wait, "/wait", max_ms=WAIT_MS_MAX)

    @property
    def invisible_ms(self) -> int:
        """The invisible time in ms. Raises InvalidValueError."""
        return _invisible_ms(self.invisible)


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts of messages that are consumed."""

    receipts: Receipts


class NackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts of messages to be delivered again; None as delay stands for the group's retry policy."""

    receipts: Receipts
    delay: str | None = None

    @property
    def delay_ms(self) -> int | None:
        """The delay in ms, or None. Raises InvalidValueError."""
        return None if self.delay is None else parse_duration_ms(self.delay, "/delay", max_ms=INVISIBLE_MS_MAX)


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts of messages that a client goes on working on."""

    receipts: Receipts
    invisible: str = "60s"

    @property
    def invisible_ms(self) -> int:
        """The invisible time from now on in ms. Raises InvalidValueError."""
        return _invisible_ms(self.invisible)


def _invisible_ms(text: str) -> int:
    invisible_ms = parse_duration_ms(text, "/invisible", max_ms=INVISIBLE_MS_MAX)
    if invisible_ms < INVISIBLE_MS_MIN:
        raise InvalidValueError("/invisible", text, f"is shorter than the least invisible time, {INVISIBLE_MS_MIN} ms")
    return invisible_ms
