"""Results of the calls of objectives, alerts and webhooks."""

import msgspec


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The limit for a group's lag on a topic; `topic` None means all topics without an objective of their own.

    Attributes:
        max_lag_seconds: Largest age of the oldest unconsumed message; None for the thresholds of the report.
        max_lag_messages: Largest lag over all queues of a topic together.
        ignore: Whether the report shows lag as IGNORED and raises no alert, until `ignore_until` if that is given.
        etag: ETag for `put_objective` and `delete_objective`.
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
    """An event of an alert: `opened`, `changed` or `resolved`. All events of an alert have the same `alert`."""

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
    """A URL that receives alerts; only the answer that creates the webhook contains `secret`."""

    id: str
    url: str
    groups: list[str]
    verdicts: list[str]
    enabled: bool
    created_at: str
    updated_at: str
    secret: str | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of one event to one webhook: `pending`, `delivered` or `failed`. A test has `event` None."""

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
