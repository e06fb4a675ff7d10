"""What the calls of objectives, alerts and webhooks return."""

import msgspec


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """How far behind a group may be; `topic` None is all topics that have no objective of their own.

    Attributes:
        max_lag_seconds: The age of the oldest unconsumed message, None: as the report's own thresholds say.
        max_lag_messages: Of all queues of a topic together.
        ignore: Whether lag is shown as IGNORED and raises no alert, until `ignore_until` where that is given.
        etag: For `put_objective` and `delete_objective`.
    """

    group: str
    topic: str | None
    max_lag_seconds: float | None
    max_lag_messages: int | None
    ignore: bool
    ignore_until: str | None
    reason: str | None
    updated_at: str
    etag: str | None = None
