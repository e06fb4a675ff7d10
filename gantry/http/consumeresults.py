"""Results of the calls that consume for a group by receipt."""

import msgspec

from gantry.http.errors import Problem
from gantry.http.results import Message


class DamagedMessage(msgspec.Struct, frozen=True):
    """A record that a pull took and whose content is damaged."""

    broker: str
    queue_offset: int
    stored_id: str | None
    reason: str


class PulledMessages(msgspec.Struct, frozen=True):
    """The messages of a pull, each with a receipt."""

    messages: list[Message]
    damaged: list[DamagedMessage] = []


class ReceiptResult(msgspec.Struct, frozen=True):
    """The result of one receipt: `acked`, `nacked` or `extended`, or else `gone` or `refused` with a problem."""

    receipt: str
    outcome: str
    problem: Problem | None = None


class Extensions(msgspec.Struct, frozen=True):
    """The new receipts, None for a message that was not extended, and the results of the old ones, in order."""

    receipts: list[str | None]
    results: list[ReceiptResult]
