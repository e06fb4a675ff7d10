"""The calls of the REST API as values: what to request, and how its answer reads.

Both clients run the same calls; nothing here does I/O. A call's `read` gets the body of a 2xx answer; everything else
is a problem, see `read_answer`.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from gantry.http.errors import GantryProblem, GantryProtocolError, Problem
from gantry.http.reportresults import LagRows, Report, ReportRun
from gantry.http.results import (
    AuditEntry,
    BatchResult,
    Cluster,
    FoundMessages,
    Group,
    GroupClient,
    GroupOffset,
    GroupSubscription,
    Key,
    Message,
    OffsetCommit,
    OffsetCommitResult,
    OutgoingMessage,
    Queue,
    QueueMessages,
    Rights,
    SendResult,
    Ticket,
    Topic,
)

T = TypeVar("T")

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
BATCH: Final = "application/vnd.gantry.batch"
PAGE_ITEMS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer reads.

    Attributes:
        sends: It sends messages, so that an answer that never came leaves an outcome.
        wait_ms: How long the server may take on purpose, besides the client's time-out.
    """

    method: str
    path: str
    read: Callable[[bytes, Mapping[str, str]], T]
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    sends: bool = False
    wait_ms: int = 0


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


def read_answer(call: Call[T], status: int, headers: Mapping[str, str], content: bytes) -> T:
    """Return what the answer says.

    Raises:
        GantryProblem: The gateway refused or could not serve.
        GantryProtocolError: The answer is not what the contract says.
    """
    if not 200 <= status < 300:
        raise read_problem(status, headers, content)
    try:
        return call.read(content, headers)
    except msgspec.DecodeError as error:
        raise GantryProtocolError(
            f"{call.method} {call.path}: {status} with a body that can't be read: {error}"
        ) from None


def read_problem(status: int, headers: Mapping[str, str], content: bytes) -> GantryProblem:
    """Return the problem of an answer, made up where something else than a gateway answered."""
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.DecodeError:
        shown = content[:200].decode("utf-8", "replace").strip()
        problem = Problem(
            "about:blank", "No problem body", status, shown or f"HTTP {status}", retryable=status in (502, 503)
        )
    seconds = headers.get("retry-after", "")
    return GantryProblem(problem, retry_after_ms=int(seconds) * 1_000 if seconds.isdecimal() else None)


def list_topics(*, system: bool, cursor: str | None) -> Call[Page[Topic]]:
    """List topics."""
    return Call("GET", "/v1/topics", _json(Page[Topic]), _page(cursor, system=_flag(system)))


def get_topic(name: str) -> Call[Topic]:
    """Show a topic."""
    return Call("GET", _path("topics", name), _tagged(Topic))


def put_topic(name: str, config: Mapping[str, Any], *, only_new: bool, etag: str | None) -> Call[Topic]:
    """Create or change a topic."""
    return _put(_path("topics", name), _tagged(Topic), config, only_new=only_new, etag=etag)


def delete_topic(name: str, *, etag: str | None) -> Call[None]:
    """Delete a topic and its messages."""
    return Call("DELETE", _path("topics", name), _nothing, headers=_match(etag))


def list_queues(topic: str) -> Call[Page[Queue]]:
    """List a topic's queues."""
    return Call("GET", _path("topics", topic, "queues"), _json(Page[Queue]))


def send(topic: str, message: OutgoingMessage, *, one_way: bool) -> Call[SendResult]:
    """Send one message."""
    fields = message_fields(message)
    key = fields.pop("idempotency_key", None)
    if one_way:
        fields["one_way"] = True
    return Call(
        "POST",
        _path("topics", topic, "messages"),
        _json(SendResult),
        content=msgspec.json.encode(fields),
        headers={"content-type": JSON} | ({"idempotency-key": key} if key is not None else {}),
        sends=True,
    )


def send_batch(topic: str, messages: Iterable[OutgoingMessage]) -> Call[BatchResult]:
    """Send many messages, bodies as bytes."""
    encode = msgspec.msgpack.encode
    items = [encode(message) for message in messages]
    content = b"".join([part for item in items for part in (len(item).to_bytes(4), item)])
    path = _path("topics", topic) + "/messages:batch"
    return Call("POST", path, _json(BatchResult), content=content, headers={"content-type": BATCH}, sends=True)


def get_message(message_id: str, *, topic: str | None, system: bool) -> Call[Message]:
    """Get one message."""
    params = _params(topic=topic, system=_flag(system))
    return Call("GET", _path("messages", message_id), _msgpack(Message), params, headers={"accept": MSGPACK})


def find_messages(topic: str, key: str, *, limit: int, system: bool) -> Call[FoundMessages]:
    """Find messages by key."""
    params = _params(key=key, limit=str(limit), system=_flag(system))
    path = _path("topics", topic, "messages")
    return Call("GET", path, _msgpack(FoundMessages), params, headers={"accept": MSGPACK})


def read_queue(
    topic: str, broker: str, queue_id: int, *, offset: int, limit: int, wait_ms: int, expression: str, system: bool
) -> Call[QueueMessages]:
    """Read a queue without consuming."""
    params = _params(offset=str(offset), limit=str(limit), wait=f"{wait_ms}ms", filter=expression, system=_flag(system))
    path = _path("topics", topic, "queues", broker, str(queue_id), "messages")
    read = _msgpack(QueueMessages)
    return Call("GET", path, read, params, headers={"accept": MSGPACK}, wait_ms=wait_ms)


def find_offset(topic: str, broker: str, queue_id: int, *, at: str, boundary: str) -> Call[int]:
    """Find the offset of a moment."""
    path = _path("topics", topic, "queues", broker, str(queue_id), "offsets")
    return Call("GET", path, lambda content, _: _OFFSET.decode(content).offset, _params(at=at, boundary=boundary))


def list_groups(*, system: bool, cursor: str | None) -> Call[Page[Group]]:
    """List groups."""
    return Call("GET", "/v1/groups", _json(Page[Group]), _page(cursor, system=_flag(system)))


def get_group(name: str) -> Call[Group]:
    """Show a group."""
    return Call("GET", _path("groups", name), _tagged(Group))


def put_group(name: str, config: Mapping[str, Any], *, only_new: bool, etag: str | None) -> Call[Group]:
    """Create or change a group."""
    return _put(_path("groups", name), _tagged(Group), config, only_new=only_new, etag=etag)


def delete_group(name: str, *, etag: str | None) -> Call[None]:
    """Delete a group and its offsets."""
    return Call("DELETE", _path("groups", name), _nothing, headers=_match(etag))


def get_offsets(group: str, *, topic: str | None) -> Call[Page[GroupOffset]]:
    """Show what a group has committed."""
    return Call("GET", _path("groups", group, "offsets"), _json(Page[GroupOffset]), _params(topic=topic))


def commit_offsets(group: str, commits: Sequence[OffsetCommit]) -> Call[list[OffsetCommitResult]]:
    """Commit offsets for a group."""
    offsets = [msgspec.to_builtins(commit) | {"offset": str(commit.offset)} for commit in commits]
    return Call(
        "PUT",
        _path("groups", group, "offsets"),
        lambda content, _: _COMMITS.decode(content).results,
        content=msgspec.json.encode({"offsets": offsets}),
        headers={"content-type": JSON},
    )


def list_clients(group: str) -> Call[Page[GroupClient]]:
    """List a group's connected instances."""
    return Call("GET", _path("groups", group, "clients"), _json(Page[GroupClient]))


def list_subscriptions(group: str, *, cursor: str | None) -> Call[Page[GroupSubscription]]:
    """List what a group's instances subscribed to."""
    path = _path("groups", group, "subscriptions")
    return Call("GET", path, _json(Page[GroupSubscription]), _page(cursor))


def get_cluster() -> Call[Cluster]:
    """Show name servers and brokers."""
    return Call("GET", "/v1/cluster", _json(Cluster))


def list_keys(*, revoked: bool, cursor: str | None) -> Call[Page[Key]]:
    """List API keys."""
    return Call("GET", "/v1/keys", _json(Page[Key]), _page(cursor, revoked=_flag(revoked)))


def create_key(name: str, rights: Rights) -> Call[Key]:
    """Make an API key."""
    content = msgspec.json.encode({"name": name, "rights": rights})
    return Call("POST", "/v1/keys", _json(Key), content=content, headers={"content-type": JSON})


def revoke_key(key_id: str) -> Call[None]:
    """Revoke an API key."""
    return Call("DELETE", _path("keys", key_id), _nothing)


def create_ticket() -> Call[Ticket]:
    """Make a ticket for a browser's WebSocket."""
    return Call("POST", "/v1/tickets", _json(Ticket))


def list_audit(*, kind: str | None, name: str | None, cursor: str | None) -> Call[Page[AuditEntry]]:
    """List changes of metadata."""
    return Call("GET", "/v1/audit", _json(Page[AuditEntry]), _page(cursor, kind=kind, name=name))


def list_reports() -> Call[Page[Report]]:
    """List report jobs."""
    return Call("GET", "/v1/reports", _json(Page[Report]))


def start_report_run(job: str, *, since: str | None, until: str | None) -> Call[ReportRun]:
    """Have a report job run."""
    content = msgspec.json.encode({} if since is None and until is None else {"window": {"from": since, "to": until}})
    return Call(
        "POST", _path("reports", job, "runs"), _json(ReportRun), content=content, headers={"content-type": JSON}
    )


def list_report_runs(job: str, *, limit: int) -> Call[Page[ReportRun]]:
    """List a job's runs."""
    return Call("GET", _path("reports", job, "runs"), _json(Page[ReportRun]), _params(limit=str(limit)))


def get_report_run(job: str, run: str) -> Call[ReportRun]:
    """Show a run of a report job."""
    return Call("GET", _path("reports", job, "runs", run), _json(ReportRun))


def get_report_page(job: str, run: str) -> Call[str]:
    """Get a run's HTML page."""
    return Call(
        "GET", _path("reports", job, "runs", run, "html"), lambda content, _: content.decode("utf-8", "replace")
    )


def read_lag_rows(
    run: str, *, group: str | None, topic: str | None, level: str | None, cursor: str | None
) -> Call[LagRows]:
    """Read rows of a lag report."""
    params = _page(cursor, run=run, group=group, topic=topic, level=level)
    return Call("GET", _path("reports", "lag_report", "rows"), _json(LagRows), params)


def message_fields(message: OutgoingMessage) -> dict[str, Any]:
    """Return a message's fields as JSON has them; bytes that are no UTF-8 travel as base64."""
    fields: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    if isinstance(message.body, bytes):
        try:
            fields["body"] = message.body.decode()
        except UnicodeDecodeError:
            fields["body"], fields["encoding"] = b64encode(message.body).decode(), "base64"
    return fields


class _Offset(msgspec.Struct):
    offset: int


class _Commits(msgspec.Struct):
    results: list[OffsetCommitResult]


# Offsets are texts in JSON; `strict=False` reads them as the integers they are.
_OFFSET = msgspec.json.Decoder(_Offset, strict=False)
_COMMITS = msgspec.json.Decoder(_Commits, strict=False)


# A decoder takes longer to make than most answers take to read.
@cache
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)


@cache
def _msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _json(kind: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    decode: Callable[[bytes], T] = _json_decoder(cast("Any", kind)).decode
    return lambda content, _: decode(content)


def _msgpack(kind: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    decode: Callable[[bytes], T] = _msgpack_decoder(cast("Any", kind)).decode
    return lambda content, _: decode(content)


Tagged = TypeVar("Tagged", Topic, Group)


def _tagged(kind: type[Tagged]) -> Callable[[bytes, Mapping[str, str]], Tagged]:
    decode: Callable[[bytes], Tagged] = _json_decoder(cast("Any", kind)).decode
    return lambda content, headers: msgspec.structs.replace(decode(content), etag=headers.get("etag"))


def _nothing(content: bytes, headers: Mapping[str, str]) -> None:
    del content, headers


def _put(
    path: str,
    read: Callable[[bytes, Mapping[str, str]], Tagged],
    config: Mapping[str, Any],
    *,
    only_new: bool,
    etag: str | None,
) -> Call[Tagged]:
    headers = {"content-type": JSON, **_match(etag)}
    if only_new:
        headers["if-none-match"] = "*"
    return Call("PUT", path, read, content=msgspec.json.encode(config), headers=headers)


def _match(etag: str | None) -> dict[str, str]:
    return {} if etag is None else {"if-match": etag}


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _flag(value: bool) -> str | None:
    return "true" if value else None


def _params(**params: str | None) -> dict[str, str]:
    return {name: value for name, value in params.items() if value is not None}


def _page(cursor: str | None, **params: str | None) -> dict[str, str]:
    return _params(limit=str(PAGE_ITEMS), cursor=cursor, **params)
