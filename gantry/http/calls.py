"""The calls of the REST API as values: each has a request and the function that reads its answer.

Both clients run the same calls. This module does no I/O. A call's `read` gets the body of a 2xx answer; any other
answer is a problem (`read_answer`). The calls of reports are in reportcalls.py,
those of alerts in alertcalls.py, those of keys in keycalls.py, and those of jobs, dead letters and scheduled messages in workcalls.py.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from gantry.http.call import (
    JSON,
    Call,
    Page,
    if_match,
    json_decoder,
    json_of,
    msgpack_of,
    page_of,
    params_of,
    path_of,
    read_nothing,
)
from gantry.http.producerresults import TopicProducers
from gantry.http.results import (
    AuditEntry,
    BatchResult,
    Cluster,
    FoundMessages,
    Group,
    GroupClient,
    GroupConsistency,
    GroupOffset,
    GroupSubscription,
    Message,
    MessageLife,
    OffsetCommit,
    OffsetCommitResult,
    OutgoingMessage,
    Queue,
    QueueMessages,
    SendResult,
    Ticket,
    Topic,
)

T = TypeVar("T")

MSGPACK: Final = "application/msgpack"
BATCH: Final = "application/vnd.gantry.batch"


def list_topics(*, system: bool, cursor: str | None) -> Call[Page[Topic]]:
    """List topics."""
    return Call("GET", "/v1/topics", json_of(Page[Topic]), page_of(cursor, system=_flag(system)))


def get_topic(name: str) -> Call[Topic]:
    """Get a topic."""
    return Call("GET", path_of("topics", name), _tagged(Topic))


def put_topic(name: str, config: Mapping[str, Any], *, only_new: bool, etag: str | None) -> Call[Topic]:
    """Create or change a topic."""
    return _put(path_of("topics", name), _tagged(Topic), config, only_new=only_new, etag=etag)


def delete_topic(name: str, *, etag: str | None) -> Call[None]:
    """Delete a topic and its messages."""
    return Call("DELETE", path_of("topics", name), read_nothing, headers=if_match(etag))


def list_producers(topic: str) -> Call[TopicProducers]:
    """List the producers of a topic."""
    return Call("GET", path_of("topics", topic, "producers"), json_of(TopicProducers))


def list_queues(topic: str) -> Call[Page[Queue]]:
    """List a topic's queues."""
    return Call("GET", path_of("topics", topic, "queues"), json_of(Page[Queue]))


def send(topic: str, message: OutgoingMessage, *, one_way: bool) -> Call[SendResult]:
    """Send one message."""
    fields = message_fields(message)
    key = fields.pop("idempotency_key", None)
    if one_way:
        fields["one_way"] = True
    return Call(
        "POST",
        path_of("topics", topic, "messages"),
        json_of(SendResult),
        content=msgspec.json.encode(fields),
        headers={"content-type": JSON} | ({"idempotency-key": key} if key is not None else {}),
    )


def send_batch(topic: str, messages: Iterable[OutgoingMessage]) -> Call[BatchResult]:
    """Send many messages, with bodies as bytes."""
    encode = msgspec.msgpack.encode
    items = [encode(message) for message in messages]
    content = b"".join([part for item in items for part in (len(item).to_bytes(4), item)])
    path = path_of("topics", topic) + "/messages:batch"
    return Call("POST", path, json_of(BatchResult), content=content, headers={"content-type": BATCH})


def get_message(message_id: str, *, topic: str | None, system: bool) -> Call[Message]:
    """Get one message."""
    params = params_of(topic=topic, system=_flag(system))
    return Call("GET", path_of("messages", message_id), msgpack_of(Message), params, headers={"accept": MSGPACK})


def trace_message(message_id: str, *, topic: str | None) -> Call[MessageLife]:
    """Tell the life of one message."""
    return Call("GET", path_of("messages", message_id, "trace"), json_of(MessageLife), params_of(topic=topic))


def find_messages(topic: str, key: str, *, limit: int, system: bool) -> Call[FoundMessages]:
    """Find messages by key."""
    params = params_of(key=key, limit=str(limit), system=_flag(system))
    path = path_of("topics", topic, "messages")
    return Call("GET", path, msgpack_of(FoundMessages), params, headers={"accept": MSGPACK})


def search_messages(
    topic: str,
    *,
    not_before: str | None,
    before: str | None,
    expression: str,
    sql: str | None,
    not_consumed_by: str | None,
    limit: int,
    cursor: str | None,
    system: bool,
) -> Call[FoundMessages]:
    """Search a topic by store time, filter and group."""
    params = params_of(
        to=before,
        filter=expression if sql is None else None,
        sql=sql,
        not_consumed_by=not_consumed_by,
        limit=str(limit),
        cursor=cursor,
        system=_flag(system),
    )
    if not_before is not None:
        params["from"] = not_before
    path = path_of("topics", topic, "messages")
    return Call("GET", path, msgpack_of(FoundMessages), params, headers={"accept": MSGPACK})


def read_queue(
    topic: str,
    broker: str,
    queue_id: int,
    *,
    offset: int,
    limit: int,
    wait_ms: int,
    expression: str,
    sql: str | None,
    system: bool,
) -> Call[QueueMessages]:
    """Read a queue without consuming its messages."""
    params = params_of(
        offset=str(offset),
        limit=str(limit),
        wait=f"{wait_ms}ms",
        filter=expression if sql is None else None,
        sql=sql,
        system=_flag(system),
    )
    path = path_of("topics", topic, "queues", broker, str(queue_id), "messages")
    read = msgpack_of(QueueMessages)
    return Call("GET", path, read, params, headers={"accept": MSGPACK}, wait_ms=wait_ms)


def find_offset(topic: str, broker: str, queue_id: int, *, at: str, boundary: str) -> Call[int]:
    """Find the offset of a queue at a moment."""
    path = path_of("topics", topic, "queues", broker, str(queue_id), "offsets")
    return Call("GET", path, lambda content, _: _OFFSET.decode(content).offset, params_of(at=at, boundary=boundary))


def list_groups(*, system: bool, cursor: str | None) -> Call[Page[Group]]:
    """List groups."""
    return Call("GET", "/v1/groups", json_of(Page[Group]), page_of(cursor, system=_flag(system)))


def get_group(name: str) -> Call[Group]:
    """Get a group."""
    return Call("GET", path_of("groups", name), _tagged(Group))


def put_group(name: str, config: Mapping[str, Any], *, only_new: bool, etag: str | None) -> Call[Group]:
    """Create or change a group."""
    return _put(path_of("groups", name), _tagged(Group), config, only_new=only_new, etag=etag)


def delete_group(name: str, *, etag: str | None) -> Call[None]:
    """Delete a group and its offsets."""
    return Call("DELETE", path_of("groups", name), read_nothing, headers=if_match(etag))


def get_offsets(group: str, *, topic: str | None) -> Call[Page[GroupOffset]]:
    """List a group's committed offsets."""
    return Call("GET", path_of("groups", group, "offsets"), json_of(Page[GroupOffset]), params_of(topic=topic))


def commit_offsets(group: str, commits: Sequence[OffsetCommit]) -> Call[list[OffsetCommitResult]]:
    """Commit offsets for a group."""
    offsets = [msgspec.to_builtins(commit) | {"offset": str(commit.offset)} for commit in commits]
    return Call(
        "PUT",
        path_of("groups", group, "offsets"),
        lambda content, _: _COMMITS.decode(content).results,
        content=msgspec.json.encode({"offsets": offsets}),
        headers={"content-type": JSON},
    )


def list_clients(group: str) -> Call[Page[GroupClient]]:
    """List a group's connected instances."""
    return Call("GET", path_of("groups", group, "clients"), json_of(Page[GroupClient]))


def get_consistency(group: str) -> Call[GroupConsistency]:
    """Compare the members of a group."""
    return Call("GET", path_of("groups", group, "consistency"), json_of(GroupConsistency))


def list_subscriptions(group: str, *, cursor: str | None) -> Call[Page[GroupSubscription]]:
    """List the subscriptions of a group's instances."""
    path = path_of("groups", group, "subscriptions")
    return Call("GET", path, json_of(Page[GroupSubscription]), page_of(cursor))


def get_cluster() -> Call[Cluster]:
    """Get the state of name servers and brokers."""
    return Call("GET", "/v1/cluster", json_of(Cluster))


def create_ticket() -> Call[Ticket]:
    """Create a ticket for a browser's WebSocket."""
    return Call("POST", "/v1/tickets", json_of(Ticket))


def list_audit(
    *,
    kind: str | None,
    name: str | None,
    actor: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
    cursor: str | None,
) -> Call[Page[AuditEntry]]:
    """List changes of metadata."""
    params = page_of(cursor, kind=kind, name=name, actor=actor, action=action, to=until)
    return Call("GET", "/v1/audit", json_of(Page[AuditEntry]), params | params_of(**{"from": since}))


def export_audit(
    *,
    kind: str | None,
    name: str | None,
    actor: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
) -> Call[bytes]:
    """Export changes of metadata as JSON, one a line."""
    params = params_of(kind=kind, name=name, actor=actor, action=action, to=until, **{"from": since})
    return Call("GET", "/v1/audit:export", lambda content, _: content, params)


def message_fields(message: OutgoingMessage) -> dict[str, Any]:
    """Return a message's fields for JSON; a body that is not UTF-8 becomes base64."""
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


# Offsets are strings in JSON; `strict=False` reads them as integers.
_OFFSET = msgspec.json.Decoder(_Offset, strict=False)
_COMMITS = msgspec.json.Decoder(_Commits, strict=False)


Tagged = TypeVar("Tagged", Topic, Group)


def _tagged(kind: type[Tagged]) -> Callable[[bytes, Mapping[str, str]], Tagged]:
    decode: Callable[[bytes], Tagged] = json_decoder(cast("Any", kind)).decode
    return lambda content, headers: msgspec.structs.replace(decode(content), etag=headers.get("etag"))


def _put(
    path: str,
    read: Callable[[bytes, Mapping[str, str]], Tagged],
    config: Mapping[str, Any],
    *,
    only_new: bool,
    etag: str | None,
) -> Call[Tagged]:
    headers = {"content-type": JSON, **if_match(etag)}
    if only_new:
        headers["if-none-match"] = "*"
    return Call("PUT", path, read, content=msgspec.json.encode(config), headers=headers)


def _flag(value: bool) -> str | None:
    return "true" if value else None
