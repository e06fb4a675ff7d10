"""`/v1/groups/{group}/dead-letters`: list, export and redrive.

Rights: a key that may consume with the group sees the letters of the topics that it may read. An admin sees all of
them, and alone may send them again.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final

import msgspec

from gantry.model.names import check_group, check_topic
from services.gateway.asgi.answer import Answer, Headers, StreamedAnswer, encode_json, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.core import Core, Feature
from services.gateway.errors import ProblemError, invalid
from services.gateway.features.actor import actor_of
from services.gateway.schemas.deadletters import RedriveRequest
from services.gateway.schemas.times import parse_time_ms
from services.gateway.usecases.deadletters.letters import DeadLetters, LetterFilter
from services.gateway.usecases.deadletters.redrive import RedriveJob, Redrives
from services.gateway.usecases.deadletters.retrytopics import PopRetryTopics
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.views.deadletters import dry_run_view, letter_view
from services.gateway.views.jobs import job_view

LIMIT_DEFAULT: Final = 32
_FILTER: Final = frozenset({"from", "tag", "to", "topic"})
_EXPORT_HEADERS: Final = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store"))

_redrive = msgspec.json.Decoder(RedriveRequest)


def dead_letter_feature(core: Core) -> Feature:
    """Return the routes of dead letters, and add the job that sends them again."""
    letters = DeadLetters(core.engine, core.reader, core.metadata)
    lookup = Lookup(core.engine, core.brokers, core.reader, core.metrics, topics=core.known_topics)
    job = RedriveJob(
        letters, lookup, core.producer, core.metadata, retry_topics=PopRetryTopics(core.engine), clock=core.clock
    )
    core.job_kinds[job.name] = job
    redrives = Redrives(letters, lookup, core.metadata, core.jobs)
    return Feature(
        dead_letter_routes(letters, redrives, require_group=core.groups.require, require_topic=core.topics.require)
    )


def dead_letter_routes(
    letters: DeadLetters,
    redrives: Redrives,
    *,
    require_group: Callable[[str], Awaitable[None]],
    require_topic: Callable[[str], Awaitable[None]],
) -> list[Operation]:
    """Return the routes of dead letters.

    `require_group` and `require_topic` raise ProblemError (404) for a group or topic that does not exist.
    """
    writer = AnswerWriter()

    async def page(call: Call) -> Answer:
        group, wanted = _group_of(call), _filter_of(call.query)
        await require_group(group)
        binary = call.wants_msgpack
        found = await letters.page(
            group,
            wanted,
            may_read=_may_read(call),
            key_id=call.key_id,
            cursor=call.query.get("cursor"),
            limit=limit_of(call.query, default=LIMIT_DEFAULT),
        )
        fields = {"next_cursor": found.next_cursor}
        if not found.is_metadata_available:
            fields["metadata"] = "unavailable"
        views = (letter_view(letter, binary=binary, leaves_large=True) for letter in found.items)
        return await writer.items(fields, views, call.key_id, binary=binary)

    async def export(call: Call) -> Answer:
        group, wanted = _group_of(call), _filter_of(call.query)
        if call.query.get("format", "ndjson") != "ndjson":
            raise invalid("format", call.query["format"], "is not ndjson")
        await require_group(group)
        found = letters.export(group, wanted, may_read=_may_read(call), key_id=call.key_id)

        async def lines() -> AsyncGenerator[bytes, None]:
            async for letter in found:
                # A key that is revoked meanwhile gets no more letters.
                call.principal.require_unrevoked()
                yield encode_json(letter_view(letter)) + b"\n"

        headers: Headers = list(_EXPORT_HEADERS)
        return StreamedAnswer(lines(), headers)

    async def redrive(call: Call) -> Answer:
        call.principal.require_operator()
        group = _group_of(call)
        wanted = await call.read_json(_redrive)
        if wanted.filter is not None and wanted.filter.topic is not None:
            check_topic(wanted.filter.topic, field="/filter/topic")
        await require_group(group)
        if wanted.filter is not None and wanted.filter.topic is not None:
            await _require_filter_topic(require_topic, wanted.filter.topic)
        if wanted.dry_run:
            return json_answer(dry_run_view(await redrives.try_out(group, wanted)))
        job = await redrives.start(group, wanted, actor_of(call))
        answer = json_answer(job_view(job), 202)
        answer.raw_headers.append((b"location", f"/v1/jobs/{job.id}".encode("ascii")))
        return answer

    letters_path = "/v1/groups/{group}/dead-letters"
    return [
        Operation("GET", letters_path, page, _FILTER | {"cursor", "limit"}),
        Operation("GET", f"{letters_path}:export", export, _FILTER | {"format"}),
        Operation("POST", f"{letters_path}:redrive", redrive),
    ]


def _group_of(call: Call) -> str:
    group: str = call.path_params["group"]
    check_group(group)
    call.principal.require(call.principal.may_see_group(group), "consume", f"group {group}")
    return group


def _may_read(call: Call) -> Callable[[str | None], bool]:
    """Return whether the caller may see the letters of a topic; None is a letter that does not say its topic."""
    principal = call.principal
    if principal.sees_all:
        return lambda topic: True
    return lambda topic: topic is not None and principal.may_read(topic)


def _filter_of(query: Mapping[str, str]) -> LetterFilter:
    topic = query.get("topic")
    if topic is not None:
        check_topic(topic)
    from_ms, to_ms = (parse_time_ms(query[name], name) if name in query else None for name in ("from", "to"))
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise invalid("to", query["to"], f"is not after from, {query['from']}")
    return LetterFilter(topic=topic, tag=query.get("tag"), from_ms=from_ms, to_ms=to_ms)


async def _require_filter_topic(require_topic: Callable[[str], Awaitable[None]], topic: str) -> None:
    try:
        await require_topic(topic)
    except ProblemError as error:
        error.field = "/filter/topic"
        raise
