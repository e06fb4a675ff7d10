"""The JSON form of scheduled messages."""

from typing import Any

from services.gateway.schemas.times import format_time
from services.gateway.usecases.scheduled.scheduled import Rescheduled, Scheduled
from services.gateway.views.messages import message_view
from services.gateway.views.optional import time_view


def scheduled_view(one: Scheduled, *, binary: bool, leaves_large: bool) -> dict[str, Any]:
    """Return a scheduled message in the contract's form; the arguments are those of `message_view`."""
    return {
        **message_view(one.message, binary=binary, leaves_large=leaves_large),
        "handle": one.handle,
        "deliver_at": format_time(one.deliver_at_ms),
    }


def rescheduled_view(done: Rescheduled) -> dict[str, Any]:
    """Return the new handle and time of a message in the contract's form."""
    return {"handle": done.handle, "deliver_at": time_view(done.deliver_at_ms)}
