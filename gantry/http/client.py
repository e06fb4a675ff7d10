"""The REST client: every call of the API as a blocking method."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gantry.http import calls
from gantry.http.alertclient import AlertClient
from gantry.http.consumeclient import ConsumeClient
from gantry.http.keyclient import KeyClient
from gantry.http.offsetclient import OffsetClient
from gantry.http.producerresults import TopicProducers
from gantry.http.reportclient import ReportClient
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
from gantry.http.workclient import WorkClient


class GantryClient(AlertClient, ConsumeClient, KeyClient, OffsetClient, ReportClient, WorkClient):
    """Calls one gateway with one API key, over a pool of connections. No call is repeated after a failure.

    Every method raises GantryProblem if the gateway refuses the call or can't serve it, GantryConnectionError if no
    complete answer came, and GantryProtocolError if the answer does not follow the contract.

    These arguments have the same meaning in all methods:
        system: Whether system topics and groups are included.
        only_new: Whether to fail (412) if the resource exists.
        etag: The ETag of the resource that the caller has read; the call fails (412) if it has changed since then.
        at, since, until: Times as the contract's type Time, such as `2026-01-31T12:00:00Z`.
        limit: The largest number of items in the answer.
        run: The id of a run, or `latest` for the latest one that succeeded.

    Concurrency: may be used by several threads.
    """

    def list_topics(self, *, system: bool = False) -> list[Topic]:
        """Return all topics that the key may see, sorted by name; with `system`, system topics too."""
        return self._all_pages(lambda cursor: calls.list_topics(system=system, cursor=cursor))

    def get_topic(self, name: str) -> Topic:
        """Return a topic."""
        return self.run(calls.get_topic(name))

    def put_topic(self, name: str, *, only_new: bool = False, etag: str | None = None, **config: Any) -> Topic:
        """Create or change a topic; `config` has read_queues, write_queues, perm, order, brokers."""
        return self.run(calls.put_topic(name, config, only_new=only_new, etag=etag))

    def delete_topic(self, name: str, *, etag: str | None = None) -> None:
        """Delete a topic and its messages."""
        self.run(calls.delete_topic(name, etag=etag))

    def list_producers(self, topic: str) -> TopicProducers:
        """Return the connected producers that have sent to a topic."""
        return self.run(calls.list_producers(topic))

    def list_queues(self, topic: str) -> list[Queue]:
        """Return a topic's queues with their offsets."""
        return self.run(calls.list_queues(topic)).items

    def send(self, topic: str, message: OutgoingMessage, *, one_way: bool = False) -> SendResult:
        """Send one message. A refusal raises GantryProblem with the outcome. `one_way`: the outcome is `unknown`."""
        return self.run(calls.send(topic, message, one_way=one_way))

    def send_batch(self, topic: str, messages: Iterable[OutgoingMessage]) -> BatchResult:
        """Send up to 1,000 messages; each has its own result."""
        return self.run(calls.send_batch(topic, messages))

    def get_message(self, message_id: str, *, topic: str | None = None, system: bool = False) -> Message:
        """Return the message with a stored id or, if `topic` is given, with a message id."""
        return self.run(calls.get_message(message_id, topic=topic, system=system))

    def trace_message(self, message_id: str, *, topic: str | None = None) -> MessageLife:
        """Return the life of the message with a stored id or, if `topic` is given, with a message id."""
        return self.run(calls.trace_message(message_id, topic=topic))

    def find_messages(self, topic: str, key: str, *, limit: int = 100, system: bool = False) -> FoundMessages:
        """Find messages by one of their keys, newest first."""
        return self.run(calls.find_messages(topic, key, limit=limit, system=system))

    def search_messages(
        self,
        topic: str,
        *,
        not_before: str | None = None,
        before: str | None = None,
        expression: str = "*",
        sql: str | None = None,
        not_consumed_by: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        system: bool = False,
    ) -> FoundMessages:
        """Return a page of a topic's messages, the oldest first; `next_cursor` leads to the next page.

        Args:
            topic: The topic.
            not_before: First store time, as RFC 3339 text; None for the first message.
            before: First store time that is too late; None for no end.
            expression: Tags separated by `||`.
            sql: SQL92 expression instead of tags (docs/filters.md).
            not_consumed_by: Group: only messages at or after its committed offsets.
            limit: Maximum number of messages of the page.
            cursor: `next_cursor` of the page before, with the same other arguments.
            system: Whether messages have their system properties.
        """
        return self.run(
            calls.search_messages(
                topic,
                not_before=not_before,
                before=before,
                expression=expression,
                sql=sql,
                not_consumed_by=not_consumed_by,
                limit=limit,
                cursor=cursor,
                system=system,
            )
        )

    def read_queue(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        *,
        offset: int = 0,
        limit: int = 32,
        wait_ms: int = 0,
        expression: str = "*",
        sql: str | None = None,
        system: bool = False,
    ) -> QueueMessages:
        """Read a queue without consuming its messages; wait up to `wait_ms` if there is none yet.

        `expression` has tags separated by `||`; `sql` is an SQL92 expression instead (docs/filters.md).
        """
        return self.run(
            calls.read_queue(
                topic,
                broker,
                queue_id,
                offset=offset,
                limit=limit,
                wait_ms=wait_ms,
                expression=expression,
                sql=sql,
                system=system,
            )
        )

    def find_offset(self, topic: str, broker: str, queue_id: int, *, at: str, boundary: str = "lower") -> int:
        """Return the offset for a moment: the first message stored then or later; with `upper`, the last until then."""
        return self.run(calls.find_offset(topic, broker, queue_id, at=at, boundary=boundary))

    def list_groups(self, *, system: bool = False) -> list[Group]:
        """Return all groups that the key may see, sorted by name."""
        return self._all_pages(lambda cursor: calls.list_groups(system=system, cursor=cursor))

    def get_group(self, name: str) -> Group:
        """Return a group."""
        return self.run(calls.get_group(name))

    def put_group(self, name: str, *, only_new: bool = False, etag: str | None = None, **config: Any) -> Group:
        """Create or change a group; `config` has retry_max_times, retry_policy, consume and other fields."""
        return self.run(calls.put_group(name, config, only_new=only_new, etag=etag))

    def delete_group(self, name: str, *, etag: str | None = None) -> None:
        """Delete a group and its offsets."""
        self.run(calls.delete_group(name, etag=etag))

    def get_offsets(self, group: str, *, topic: str | None = None) -> list[GroupOffset]:
        """Return a group's committed offset and lag in each queue; `topic` None means all its topics."""
        return self.run(calls.get_offsets(group, topic=topic)).items

    def commit_offsets(self, group: str, commits: Sequence[OffsetCommit]) -> list[OffsetCommitResult]:
        """Commit offsets for a group; each has its own result."""
        return self.run(calls.commit_offsets(group, commits))

    def list_clients(self, group: str) -> list[GroupClient]:
        """Return the instances of a consumer group that are connected now."""
        return self.run(calls.list_clients(group)).items

    def get_consistency(self, group: str) -> GroupConsistency:
        """Return whether the connected members of a group agree on topics, filters and message model."""
        return self.run(calls.get_consistency(group))

    def list_subscriptions(self, group: str) -> list[GroupSubscription]:
        """Return the subscriptions of the group's instances, present and past."""
        return self._all_pages(lambda cursor: calls.list_subscriptions(group, cursor=cursor))

    def get_cluster(self) -> Cluster:
        """Return the current state of name servers and brokers."""
        return self.run(calls.get_cluster())

    def create_ticket(self) -> Ticket:
        """Create a one-use ticket for a browser's WebSocket."""
        return self.run(calls.create_ticket())

    def list_audit(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[AuditEntry]:
        """Return changes of metadata, newest first, of a `kind` such as `topic`; `name` needs `kind`."""
        return self._all_pages(
            lambda cursor: calls.list_audit(
                kind=kind, name=name, actor=actor, action=action, since=since, until=until, cursor=cursor
            )
        )

    def export_audit(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the same changes as JSON, one change a line, piece by piece."""
        call = calls.export_audit(kind=kind, name=name, actor=actor, action=action, since=since, until=until)
        return self.stream(call)
