"""The responses to requests 900003 and 900004, Gantry's own: open transactions, and the decision on one."""

from gantry.remoting.bodies.fastjson import JsonBody


class OpenTransaction(JsonBody, kw_only=True):
    """One transaction that is not decided."""

    born_at: int
    checks: int
    """Number of times that the broker has asked its producers."""
    group: str
    """The producer group."""
    message_id: str
    next_check_at: int
    """The earliest time (ms) at which the broker asks the next time."""
    physical_offset: int
    """The position of the newest half message in the CommitLog."""
    queue_id: int
    """The queue of the message itself."""
    queue_offset: int
    """The queue offset of the newest half message in the half topic."""
    stored_at: int
    topic: str
    """The topic of the message itself."""


class OpenTransactions(JsonBody, kw_only=True):
    """The response to 900003. If `next_offset` is not null, there may be more: repeat the request with it."""

    next_offset: int | None = None
    now_ms: int
    transactions: list[OpenTransaction]


class KnownDecision(JsonBody, kw_only=True):
    """The response to 900004: 8 for a commit, 12 for a rollback; null if the broker does not remember one."""

    decision: int | None = None
