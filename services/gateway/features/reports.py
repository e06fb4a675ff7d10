"""`/v1/reports`: report jobs, their runs and their results."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gantry.model.errors import NO_VALUE
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from services.gateway.asgi.answer import Answer, Headers, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.core import Core, Feature
from services.gateway.errors import invalid
from services.gateway.features.actor import actor_of
from services.gateway.schemas.reports import LATEST, NewRun, NewSchedule
from services.gateway.schemas.times import parse_time_ms
from services.gateway.usecases.reports.laghistory import LagHistory
from services.gateway.usecases.reports.rows import SECTIONS, SPANS, ReportRows
from services.gateway.usecases.reports.runs import BACKLOG_PROFILE, LAG_REPORT, THROUGHPUT_ROLLUP, Reports
from services.gateway.views.page import page_view
from services.gateway.views.reports import (
    backlog_row_view,
    history_view,
    job_view,
    jobs_view,
    lag_row_view,
    run_rows_view,
    run_view,
    throughput_view,
)

LEVELS: Final = ("queue", "topic")
_ALL_ROWS: Final = frozenset({"cursor", "group", "limit", "topic"})
_MOMENT_MS_MIN: Final = 0
_MOMENT_MS_MAX: Final = 253_370_764_800_000
"""The year 9999."""

# A page is one file. No name and no key of a message in it can make the browser run or fetch anything.
_PAGE_POLICY: Final = (
    b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _PAGE_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)

_new_run = msgspec.json.Decoder(NewRun)
_new_schedule = msgspec.json.Decoder(NewSchedule)


def report_feature(core: Core) -> Feature:
    """Return the routes of reports."""
    metadata, clock = core.metadata, core.clock
    history = LagHistory(metadata, clock=clock, in_thread=core.engine.in_thread)
    return Feature(report_routes(Reports(metadata, clock=clock), ReportRows(metadata, clock=clock), history))


def report_routes(reports: Reports, rows: ReportRows, history: LagHistory) -> list[Operation]:
    """Return the routes of reports."""

    async def show_all(call: Call) -> Answer:
        _require_reading(call)
        return json_answer(jobs_view(await reports.list()))

    async def start(call: Call) -> Answer:
        call.principal.require_operator()
        wanted = await call.read_optional_json(_new_run, NewRun())
        job = call.path_params["job"]
        started = await reports.start(job, wanted, actor_of(call))
        answer = json_answer(run_view(started.run), 202 if started.is_queued else 200)
        if started.is_queued:
            answer.raw_headers.append((b"location", f"/v1/reports/{job}/runs/{started.run.id}".encode("ascii")))
        return answer

    async def page(call: Call) -> Answer:
        _require_reading(call)
        cursor, limit = call.query.get("cursor"), limit_of(call.query)
        found = await reports.page(call.path_params["job"], cursor=cursor, limit=limit)
        return json_answer(page_view(found, run_view))

    async def show(call: Call) -> Answer:
        _require_reading(call)
        return json_answer(run_view(await reports.get(call.path_params["job"], call.path_params["run"])))

    async def show_page(call: Call) -> Answer:
        _require_reading(call)
        html = await reports.html(call.path_params["job"], call.path_params["run"])
        headers: Headers = list(_PAGE_HEADERS)
        return Answer(200, html.encode(), headers)

    return [
        Operation("GET", "/v1/reports", show_all),
        *_schedule_routes(reports),
        Operation("GET", "/v1/reports/{job}/runs", page, frozenset({"cursor", "limit"})),
        Operation("POST", "/v1/reports/{job}/runs", start),
        Operation("GET", "/v1/reports/{job}/runs/{run}", show),
        Operation("GET", "/v1/reports/{job}/runs/{run}/html", show_page),
        *_row_routes(rows, history),
    ]


def _schedule_routes(reports: Reports) -> list[Operation]:
    """Return the routes of schedules."""

    async def set_schedule(call: Call) -> Answer:
        call.principal.require_operator()
        wanted = await call.read_json(_new_schedule)
        return json_answer(job_view(await reports.set_schedule(call.path_params["job"], wanted, actor_of(call))))

    async def remove_schedule(call: Call) -> Answer:
        call.principal.require_operator()
        return json_answer(job_view(await reports.remove_schedule(call.path_params["job"], actor_of(call))))

    path = "/v1/reports/{job}/schedule"
    return [Operation("PUT", path, set_schedule), Operation("DELETE", path, remove_schedule)]


def _row_routes(rows: ReportRows, history: LagHistory) -> list[Operation]:
    """Return the routes of the results of reports."""

    async def lag_rows(call: Call) -> Answer:
        _require_reading(call)
        run, level = call.query.get("run", LATEST), _one_of(call.query, "level", LEVELS)
        found = await rows.lag(run=run, level=level, **_wanted_rows(call.query))
        return json_answer(run_rows_view(found, lag_row_view))

    async def backlog_rows(call: Call) -> Answer:
        _require_reading(call)
        run, section = call.query.get("run", LATEST), _one_of(call.query, "section", SECTIONS)
        found = await rows.backlog(run=run, section=section, **_wanted_rows(call.query))
        return json_answer(run_rows_view(found, backlog_row_view))

    async def throughput(call: Call) -> Answer:
        _require_reading(call)
        query = call.query
        unit = _one_of(query, "unit", tuple(SPANS)) or "hour"
        start_ms, end_ms = _stretch(query)
        found = await rows.throughput(
            unit=unit, start_ms=start_ms, end_ms=end_ms, zone=query.get("time_zone"), **_wanted_rows(query)
        )
        return json_answer(throughput_view(found))

    async def lag_history(call: Call) -> Answer:
        _require_reading(call)
        wanted = _wanted_rows(call.query)
        group, topic = wanted["group"], wanted["topic"]
        if group is None or topic is None:
            missing = "group" if group is None else "topic"
            raise invalid(missing, NO_VALUE, "is needed: a history is of one group on one topic")
        start_ms, end_ms = _stretch(call.query)
        return json_answer(history_view(await history.read(group, topic, start_ms=start_ms, end_ms=end_ms)))

    return [
        Operation("GET", f"/v1/reports/{LAG_REPORT}/rows", lag_rows, _ALL_ROWS | {"level", "run"}),
        Operation("GET", f"/v1/reports/{LAG_REPORT}/history", lag_history, frozenset({"from", "group", "to", "topic"})),
        Operation("GET", f"/v1/reports/{BACKLOG_PROFILE}/rows", backlog_rows, _ALL_ROWS | {"run", "section"}),
        Operation(
            "GET", f"/v1/reports/{THROUGHPUT_ROLLUP}/rows", throughput, _ALL_ROWS | {"from", "time_zone", "to", "unit"}
        ),
    ]


def _wanted_rows(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter of a report's rows. Raises InvalidValueError."""
    group, topic = query.get("group"), query.get("topic")
    if group is not None:
        check_group(group)
    if topic is not None:
        check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX)
    return {"group": group, "topic": topic, "cursor": query.get("cursor"), "limit": limit_of(query)}


def _stretch(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return `from` and `to` in ms. Raises InvalidValueError."""
    return _find_moment_ms(query, "from"), _find_moment_ms(query, "to")


def _find_moment_ms(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    at_ms = parse_time_ms(text, name)
    # No sample is older or newer, and dates near the first and the last year would overflow.
    if not _MOMENT_MS_MIN <= at_ms < _MOMENT_MS_MAX:
        raise invalid(name, text, "lies outside of the years 1970 to 9998")
    return at_ms


def _one_of(query: Mapping[str, str], name: str, values: Sequence[str]) -> str | None:
    value = query.get(name)
    if value is not None and value not in values:
        raise invalid(name, value, f"is not one of {', '.join(values)}")
    return value


def _require_reading(call: Call) -> None:
    rights = call.principal.rights
    call.principal.require(rights.metrics or rights.admin, "metrics")
