"""The JSON form of report jobs, their runs and their results."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from services.gateway.db.reportrows import BacklogRow, LagRow, ThroughputBucket
from services.gateway.db.reports import Run
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.reports.laghistory import PairHistory
from services.gateway.usecases.reports.rows import RunRows, Throughput
from services.gateway.usecases.reports.runs import Job
from services.gateway.views.page import page_view

T = TypeVar("T")


def jobs_view(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return all jobs in the contract's form."""
    return {"items": [job_view(job) for job in jobs]}


def job_view(job: Job) -> dict[str, Any]:
    """Return a job in the contract's form."""
    schedule, schedule_set = job.schedule, job.schedule_set
    return {
        "job": job.name,
        "schedule": None if schedule is None else schedule.cron,
        "time_zone": None if schedule is None else schedule.time_zone,
        "next_run_at": None if schedule is None else _format_optional(schedule.next_run_at),
        "schedule_set": None
        if schedule_set is None
        else {
            "cron": schedule_set.cron,
            "time_zone": schedule_set.time_zone,
            "set_by": schedule_set.set_by,
            "set_at": format_moment(schedule_set.set_at),
        },
        "last_run": None if job.last_run is None else run_view(job.last_run),
    }


def run_view(run: Run) -> dict[str, Any]:
    """Return a run in the contract's form."""
    has_progress = run.progress_percent is not None or run.progress is not None
    took = None if run.started_at is None or run.finished_at is None else run.finished_at - run.started_at
    return {
        "id": str(run.id),
        "job": run.job,
        "window": None
        if run.window_start is None
        else {"from": format_moment(run.window_start), "to": format_moment(run.window_end)},
        "trigger": run.trigger,
        "status": run.status,
        "progress": {"percent": run.progress_percent, "step": run.progress} if has_progress else None,
        "attempt": run.attempt,
        "rows": run.rows,
        "error": run.error,
        "created_at": format_moment(run.created_at),
        "started_at": _format_optional(run.started_at),
        "finished_at": _format_optional(run.finished_at),
        "duration_ms": None if took is None else max(0, int(took.total_seconds() * 1_000)),
        "files": None if run.files is None else {"html": run.files.get("html"), "parquet": run.files.get("parquet")},
    }


def run_rows_view(rows: RunRows[T], row_view: Callable[[T], Any]) -> dict[str, Any]:
    """Return rows of a run in the contract's form, each as `row_view` renders it."""
    return {"run": str(rows.run_id), "as_of": format_moment(rows.as_of), **page_view(rows.page, row_view)}


def lag_row_view(row: LagRow) -> dict[str, Any]:
    """Return a row of a lag report in the contract's form."""
    return {
        "level": row.level,
        "group": row.group_name,
        "topic": row.topic,
        "broker": row.broker,
        "queue_id": row.queue_id,
        "as_of": format_moment(row.as_of),
        "lag_messages": row.lag_messages,
        "lag_seconds": row.lag_seconds,
        "in_rate": row.in_rate,
        "out_rate": row.out_rate,
        "drain_eta_s": row.drain_eta_s,
        "drain_eta_low_s": row.drain_eta_low_s,
        "drain_eta_high_s": row.drain_eta_high_s,
        "oldest_unconsumed_at": _format_optional(row.oldest_unconsumed_at),
        "behind_since": _format_optional(row.behind_since),
        "retention_left_s": row.retention_left_s,
        "skew": row.skew,
        "top_tags": row.top_tags,
        "clients": row.clients,
        "owners": row.owners,
        "verdict": row.verdict,
        "cause": row.cause,
        "next_step": row.next_step,
        "evidence": row.evidence,
    }


def backlog_row_view(row: BacklogRow) -> dict[str, Any]:
    """Return a row of a backlog profile in the contract's form."""
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


def throughput_view(found: Throughput) -> dict[str, Any]:
    """Return throughput buckets in the contract's form."""
    return {
        "unit": found.unit,
        "from": format_moment(found.start),
        "to": format_moment(found.end),
        "time_zone": found.zone,
        **page_view(found.page, bucket_view),
    }


def bucket_view(bucket: ThroughputBucket) -> dict[str, Any]:
    """Return a throughput bucket in the contract's form."""
    return {
        "bucket_at": format_moment(bucket.bucket_at),
        "topic": bucket.topic,
        "group": bucket.group_name,
        "messages": bucket.messages,
        "rate_max": bucket.rate_max,
        "lag_messages": bucket.lag_messages,
        "covered_s": bucket.covered_s,
    }


def history_view(history: PairHistory) -> dict[str, Any]:
    """Return a lag history in the contract's form."""
    return {
        "group": history.group,
        "topic": history.topic,
        "from": format_moment(history.start),
        "to": format_moment(history.end),
        "step_s": round(history.step.total_seconds()),
        "items": [
            {
                "at": format_moment(point.at),
                "lag_messages": point.lag,
                "lag_seconds": point.behind_s,
                "missing_brokers": list(point.missing_brokers),
                "late_brokers": list(point.late_brokers),
            }
            for point in history.points
        ],
    }


def _format_optional(moment: datetime | None) -> str | None:
    return None if moment is None else format_moment(moment)
