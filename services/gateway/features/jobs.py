"""`/v1/jobs`: long work of the gateways, and its runner. Other features queue jobs."""

from collections.abc import Collection

from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.core import Core, Feature
from services.gateway.db.jobs import STATES, Job
from services.gateway.errors import UNKNOWN_JOB, ProblemError, invalid
from services.gateway.features.actor import actor_of
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import JobRunner
from services.gateway.views.jobs import job_view
from services.gateway.views.page import page_view


def job_feature(core: Core) -> Feature:
    """Return the routes of jobs, and the runner."""
    runner = JobRunner(
        core.job_kinds,
        core.metadata,
        core.metrics,
        clock=core.clock,
        keep_days=core.settings.job_keep_days,
        due=core.due_work.jobs,
    )
    return Feature(job_routes(core.jobs, core.job_kinds), background={"jobs": runner.run})


def job_routes(jobs: Jobs, kinds: Collection[str]) -> list[Operation]:
    """Return the routes of jobs. An admin sees all jobs, and any other key those that it created."""

    async def page(call: Call) -> Answer:
        query = call.query
        kind, state = query.get("kind"), query.get("state")
        if kind is not None and kind not in kinds:
            raise invalid("kind", kind, f"is not one of {', '.join(sorted(kinds))}")
        if state is not None and state not in STATES:
            raise invalid("state", state, f"is not one of {', '.join(STATES)}")
        mine = None if call.principal.sees_all else call.principal.key_id
        cursor, limit = query.get("cursor"), limit_of(query)
        found = await jobs.page(kind=kind, state=state, created_by=mine, cursor=cursor, limit=limit)
        return json_answer(page_view(found, job_view))

    async def show(call: Call) -> Answer:
        return json_answer(job_view(await _visible(call)))

    async def cancel(call: Call) -> Answer:
        job = await _visible(call)
        if job.created_by != call.principal.key_id:
            call.principal.require_operator()
        return json_answer(job_view(await jobs.cancel(call.path_params["job"], actor_of(call))))

    async def _visible(call: Call) -> Job:
        text = call.path_params["job"]
        job = await jobs.get(text)
        if not call.principal.sees_all and job.created_by != call.principal.key_id:
            # The answer must not reveal that such a job exists.
            raise ProblemError(UNKNOWN_JOB, f"job: there is no job {text}", field="job")
        return job

    return [
        Operation("GET", "/v1/jobs", page, frozenset({"cursor", "kind", "limit", "state"})),
        Operation("GET", "/v1/jobs/{job:id}", show),
        Operation("POST", "/v1/jobs/{job}:cancel", cancel, is_empty=True),
    ]
