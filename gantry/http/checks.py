"""Questions about open transactions, which a stream answers for its producer groups."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from gantry.http.streamframes import Check
from gantry.runtime.telemetry import logger

log = logger("http.stream")

Decision = Literal["commit", "rollback", "unknown"]
OnCheck = Callable[[Check], Awaitable[Decision]]
"""Decides an open transaction."""

_DECISIONS: Final = ("commit", "rollback", "unknown")


def hello_of(client_name: str | None, producer_groups: Sequence[str], on_check: OnCheck | None) -> dict[str, Any]:
    """Return the fields of a client's hello; none if it needs no hello. Raises ValueError."""
    if bool(producer_groups) != (on_check is not None):
        raise ValueError("producer_groups and on_check: give both or neither")
    hello: dict[str, Any] = {} if client_name is None else {"client_name": client_name}
    if producer_groups:
        hello["producer_groups"] = list(producer_groups)
    return hello


async def answer_to(check: Check, decide: OnCheck) -> dict[str, Any]:
    """Return the frame that answers a question; the decision of a function that fails is `unknown`."""
    decision: str = "unknown"
    try:
        decision = await decide(check)
    except Exception:  # boundary: of the caller's function; the stream goes on, and the broker asks again.
        log.exception("a transaction was not decided", transaction=check.transaction, group=check.group)
    if decision not in _DECISIONS:
        log.error("on_check returned no decision", transaction=check.transaction, returned=repr(decision))
        decision = "unknown"
    return {"type": "check_result", "transaction": check.transaction, "decision": decision}
