"""The calls of jobs, dead letters, scheduled messages and producer groups as values."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from gantry.http.call import JSON, Call, Page, json_of, msgpack_of, page_of, params_of, path_of
from gantry.http.workresults import DeadLetter, Job, ProducerGroup, RedriveTrial, Rescheduled, ScheduledMessage

T = TypeVar("T")

AS_MSGPACK: Final = {"accept": "application/msgpack"}


def list_jobs(*, kind: str | None, state: str | None, cursor: str | None) -> Call[Page[Job]]:
    """List jobs."""
    return Call("GET", "/v1/jobs", json_of(Page[Job]), page_of(cursor, kind=kind, state=state))


def get_job(job: str) -> Call[Job]:
    """Get a job."""
    return Call("GET", path_of("jobs", job), json_of(Job))


def cancel_job(job: str) -> Call[Job]:
    """Ask for the end of a job."""
    return Call("POST", path_of("jobs", job) + ":cancel", json_of(Job))


def list_dead_letters(
    group: str,
    *,
    topic: str | None,
    tag: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    cursor: str | None,
) -> Call[Page[DeadLetter]]:
    """List dead letters of a group, newest first."""
    params = params_of(limit=str(limit), cursor=cursor, topic=topic, tag=tag, **{"from": since, "to": until})
    path = path_of("groups", group, "dead-letters")
    return Call("GET", path, msgpack_of(Page[DeadLetter]), params, headers=AS_MSGPACK)


def export_dead_letters(
    group: str, *, topic: str | None, tag: str | None, since: str | None, until: str | None
) -> Call[bytes]:
    """Export dead letters of a group, one JSON object a line."""
    params = params_of(format="ndjson", topic=topic, tag=tag, **{"from": since, "to": until})
    return Call("GET", path_of("groups", group, "dead-letters") + ":export", lambda content, _: content, params)


def redrive_dead_letters(group: str, wanted: Mapping[str, Any]) -> Call[Job]:
    """Start a job that sends dead letters again."""
    return _posted(path_of("groups", group, "dead-letters") + ":redrive", wanted, Job)


def try_redrive(group: str, wanted: Mapping[str, Any]) -> Call[RedriveTrial]:
    """Count the dead letters that a redrive would send."""
    path = path_of("groups", group, "dead-letters") + ":redrive"
    return _posted(path, {**wanted, "dry_run": True}, RedriveTrial)


def list_scheduled(
    topic: str, *, since: str | None, until: str | None, limit: int, cursor: str | None
) -> Call[Page[ScheduledMessage]]:
    """List scheduled messages of a topic by their time."""
    params = params_of(limit=str(limit), cursor=cursor, **{"from": since, "to": until})
    path = path_of("topics", topic, "scheduled")
    return Call("GET", path, msgpack_of(Page[ScheduledMessage]), params, headers=AS_MSGPACK)


def recall_message(topic: str, handle: str) -> Call[bool]:
    """Take a scheduled message back."""
    return Call("POST", path_of("topics", topic, "scheduled", handle) + ":recall", _is_recalled)


def reschedule_message(topic: str, handle: str, time: Mapping[str, str]) -> Call[Rescheduled]:
    """Give a scheduled message another time."""
    return _posted(path_of("topics", topic, "scheduled", handle) + ":reschedule", time, Rescheduled)


def get_producer_group(group: str) -> Call[ProducerGroup]:
    """Get the settings of a producer group."""
    return Call("GET", path_of("producer-groups", group), json_of(ProducerGroup))


def put_producer_group(group: str, *, check_url: str | None, check_secret: str | None) -> Call[ProducerGroup]:
    """Set or remove the URL that is asked about open transactions of a producer group."""
    body = {"check_url": check_url} | ({} if check_secret is None else {"check_secret": check_secret})
    content, headers = msgspec.json.encode(body), {"content-type": JSON}
    return Call("PUT", path_of("producer-groups", group), json_of(ProducerGroup), content=content, headers=headers)


def _posted(path: str, body: Mapping[str, Any], result: type[T]) -> Call[T]:
    return Call("POST", path, json_of(result), content=msgspec.json.encode(body), headers={"content-type": JSON})


def _is_recalled(content: bytes, headers: Mapping[str, str]) -> bool:
    del headers
    return msgspec.json.decode(content, type=_Recall).outcome == "recalled"


class _Recall(msgspec.Struct, frozen=True):
    outcome: str
