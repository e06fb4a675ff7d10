"""Reports as requests and answers show them."""

import uuid
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.times import format_moment, parse_time_ms

LATEST: Final = "latest"

_PLAIN: Final = (
    "lag_messages",
    "lag_seconds",
    "in_rate",
    "out_rate",
    "drain_eta_s",
    "drain_eta_low_s",
    "drain_eta_high_s",
)
_MORE: Final = (
    "retention_left_s",
    "skew",
    "top_tags",
    "clients",
    "owners",
    "verdict",
    "cause",
    "next_step",
    "evidence",
)


class RequestedWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """The time range of a requested report."""

    start: str
    end: str


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a run."""

    window: RequestedWindow | None = None


def read_window(window: RequestedWindow, *, now_ms: int) -> tuple[datetime, datetime]:
    """Return the two times of a window.

    Raises:
        InvalidValueError: A time is not valid, the first is not before the second, or the second is in the future: data
            after the run would be missing for good, because a window is reported once.
    """
    start_ms, end_ms = parse_time_ms(window.start, "/window/from"), parse_time_ms(window.end, "/window/to")
    if start_ms >= end_ms:
        raise InvalidValueError("/window/to", window.end, f"is not after /window/from, {window.start}")
    if end_ms > now_ms:
        raise InvalidValueError("/window/to", window.end, "is in the future: a report covers the past only")
    return moment_of(start_ms), moment_of(end_ms)


def read_run_id(text: str, field: str) -> uuid.UUID | None:
    """Return a run's id, or None for `latest`.

    Raises:
        InvalidValueError: It is neither.
    """
    if text == LATEST:
        return None
    try:
        run_id = uuid.UUID(text)
    except ValueError:
        run_id = None
    # UUID() also accepts braces, `urn:uuid:`, missing hyphens and capitals; these are rejected here.
    if run_id is None or str(run_id) != text:
        raise InvalidValueError(field, text, "is neither a run's id nor `latest`")
    return run_id


def run_view(row: Any) -> dict[str, Any]:
    """Return the view of a run."""
    has_progress = row.progress_percent is not None or row.progress is not None
    took = None if row.started_at is None or row.finished_at is None else row.finished_at - row.started_at
    return {
        "id": str(row.id),
        "job": row.job,
        "window": None
        if row.window_start is None
        else {"from": format_moment(row.window_start), "to": format_moment(row.window_end)},
        "trigger": row.trigger,
        "status": row.status,
        "progress": {"percent": row.progress_percent, "step": row.progress} if has_progress else None,
        "attempt": row.attempt,
        "rows": row.rows,
        "error": row.error,
        "created_at": format_moment(row.created_at),
        "started_at": _format_optional(row.started_at),
        "finished_at": _format_optional(row.finished_at),
        "duration_ms": None if took is None else max(0, int(took.total_seconds() * 1_000)),
        "files": None if row.files is None else {"html": row.files.get("html"), "parquet": row.files.get("parquet")},
    }


def lag_row_view(row: Any) -> dict[str, Any]:
    """Return the view of a lag report's row."""
    figures = row._mapping  # noqa: SLF001 - public API of a row, despite its underscore.
    return {
        "level": row.level,
        "group": row.group_name,
        "topic": row.topic,
        "broker": row.broker,
        "queue_id": row.queue_id,
        "as_of": format_moment(row.as_of),
        **{name: figures[name] for name in _PLAIN},
        "oldest_unconsumed_at": _format_optional(row.oldest_unconsumed_at),
        "behind_since": _format_optional(row.behind_since),
        **{name: figures[name] for name in _MORE},
    }


def backlog_row_view(row: Any) -> dict[str, Any]:
    """Return the view of a backlog profile's row."""
    return {
        "group": row.group_name,
        "topic": row.topic,
        "section": row.section,
        "bucket": row.bucket,
        "lower_bound": row.lower_bound,
        "upper_bound": row.upper_bound,
        "messages": row.messages,
        "bytes": row.bytes,
    }


def bucket_view(row: Any) -> dict[str, Any]:
    """Return the view of a throughput bucket."""
    return {
        "bucket_at": format_moment(row.bucket_at),
        "topic": row.topic,
        "group": row.group_name,
        "messages": row.messages,
        "rate_max": row.rate_max,
        "lag_messages": row.lag_messages,
        "covered_s": row.covered_s,
    }


def _format_optional(moment: datetime | None) -> str | None:
    return None if moment is None else format_moment(moment)


def moment_of(at_ms: int) -> datetime:
    """Return a time in ms since 1970 as a UTC datetime."""
    second, ms = divmod(at_ms, 1_000)
    return datetime.fromtimestamp(second, UTC).replace(microsecond=ms * 1_000)
