"""Results of the calls of objectives, alerts and webhooks."""

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


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An open alert of a group on a topic; `seen_verdict` is the verdict of the last report."""

    id: str
    group: str
    topic: str
    verdict: str
    opened_at: str
    since: str
    seen_at: str
    seen_verdict: str
    lag_messages: int | None
    lag_seconds: float | None
    run: str


class AlertEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an alert: `opened`, `changed` or `resolved`; `alert` is the same from the first to the last."""

    id: str
    at: str
    alert: str
    kind: str
    group: str
    topic: str
    old_verdict: str | None
    new_verdict: str
    since: str
    lag_messages: int | None
    lag_seconds: float | None
    cause: str | None
    run: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that is told of alerts; `secret` is only in the answer that makes it."""

    id: str
    url: str
    groups: list[str]
    verdicts: list[str]
    enabled: bool
    created_at: str
    updated_at: str
    secret: str | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way to one webhook: `pending`, `delivered` or `failed`; `event` None is a test."""

    id: str
    webhook: str
    event: str | None
    status: str
    attempts: int
    created_at: str
    next_attempt_at: str | None
    finished_at: str | None
    last_status: int | None
    last_error: str | None
