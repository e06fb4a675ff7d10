"""The JSON form of jobs."""

from typing import Any

from services.gateway.db.jobs import Job
from services.gateway.schemas.times import format_moment
from services.gateway.views.optional import moment_view


def job_view(job: Job) -> dict[str, Any]:
    """Return a job in the contract's form."""
    return {
        "job": str(job.id),
        "kind": job.kind,
        "arguments": job.arguments,
        "state": job.state,
        "cancel_requested": job.is_cancel_requested,
        "done": job.done,
        "failed": job.failed,
        "total": job.total,
        "error": job.error,
        "created_by": job.created_by,
        "created_at": format_moment(job.created_at),
        "started_at": moment_view(job.started_at),
        "ended_at": moment_view(job.ended_at),
    }
