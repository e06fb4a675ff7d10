"""The REST client: every call of the API as a blocking method."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from gantry.http import alertcalls, calls, reportcalls
from gantry.http.alertresults import Alert, AlertEvent, Delivery, Objective, Webhook
from gantry.http.call import Call, Page, Paged, read_answer
from gantry.http.exchange import explained, request_of
from gantry.http.proxies import follows_proxies
from gantry.http.reportresults import BacklogRows, LagHistory, LagRows, Report, ReportRun, Throughput
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
from gantry.http.stack import read_stack

T = TypeVar("T")

TIMEOUT_MS = 10_000


class GantryClient:
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

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: URL of the gateway, such as `http://127.0.0.1:8080`, without `/v1`.
            api_key: API key; None for a gateway that needs none.
            timeout_ms: Time-out for connecting, and for each read and each write; not for a whole call.
            transport: Replaces the network; for tests.
        """
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_ms / 1_000
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=self._timeout_s,
            transport=transport,
            trust_env=follows_proxies(self.base_url),
        )

    @classmethod
    def from_stack(cls, data_dir: str | Path) -> Self:
        """Return a client of the stack that `gantry up --data DIR` runs. Raises NoStackError."""
        stack = read_stack(data_dir)
        return cls(stack.http, stack.api_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Run a call of `gantry.http.calls`, `alertcalls` or `reportcalls`, and return its decoded answer."""
        with explained(call, self.base_url):
            answer = self._http.request(**request_of(call, self._timeout_s))
        return read_answer(call, answer.status_code, answer.headers, answer.content)

    def stream(self, call: Call[Any]) -> Iterator[bytes]:
        """Run a call whose answer has no limit, such as an export, and yield the bytes of its body as they come."""
        with explained(call, self.base_url), self._http.stream(**request_of(call, self._timeout_s)) as answer:
            if answer.is_error:
                read_answer(call, answer.status_code, answer.headers, answer.read())
            yield from answer.iter_bytes()

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

    def find_messages(self, topic: str, key: str, *, limit: int = 100, system: bool = False) -> FoundMessages:
        """Find messages by one of their keys, newest first."""
        return self.run(calls.find_messages(topic, key, limit=limit, system=system))

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
        system: bool = False,
    ) -> QueueMessages:
        """Read a queue without consuming its messages; wait up to `wait_ms` if there is none yet."""
        return self.run(
            calls.read_queue(
                topic,
                broker,
                queue_id,
                offset=offset,
                limit=limit,
                wait_ms=wait_ms,
                expression=expression,
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
        """Create or change a group; `config` has retry_max_times, consume, from_min and other fields."""
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

    def list_subscriptions(self, group: str) -> list[GroupSubscription]:
        """Return the subscriptions of the group's instances, present and past."""
        return self._all_pages(lambda cursor: calls.list_subscriptions(group, cursor=cursor))

    def list_objectives(self, *, group: str | None = None) -> list[Objective]:
        """Return all objectives, or those of a group, sorted by group and topic. An objective limits a group's lag."""
        return self._all_pages(lambda cursor: alertcalls.list_objectives(group=group, cursor=cursor))

    def get_objective(self, group: str, *, topic: str | None = None) -> Objective:
        """Return a group's objective for a topic; `topic` None means all topics without an objective of their own."""
        return self.run(alertcalls.get_objective(group, topic=topic))

    def put_objective(
        self, group: str, *, topic: str | None = None, etag: str | None = None, **change: Any
    ) -> Objective:
        """Create or change an objective; `change` has max_lag_seconds, max_lag_messages, ignore, ignore_until, reason."""
        return self.run(alertcalls.put_objective(group, change, topic=topic, etag=etag))

    def delete_objective(self, group: str, *, topic: str | None = None, etag: str | None = None) -> None:
        """Delete an objective; `topic` as in `get_objective`."""
        self.run(alertcalls.delete_objective(group, topic=topic, etag=etag))

    def list_alerts(self, *, group: str | None = None) -> list[Alert]:
        """Return the alerts that are open now, sorted by group and topic."""
        return self._all_pages(lambda cursor: alertcalls.list_alerts(group=group, cursor=cursor))

    def list_alert_events(
        self, *, group: str | None = None, topic: str | None = None, limit: int = 100
    ) -> list[AlertEvent]:
        """Return the events of alerts, such as opened and closed, newest first."""
        return self.run(alertcalls.list_alert_events(group=group, topic=topic, limit=limit)).items

    def list_webhooks(self) -> list[Webhook]:
        """Return all webhooks."""
        return self._all_pages(lambda cursor: alertcalls.list_webhooks(cursor=cursor))

    def create_webhook(self, url: str, **config: Any) -> Webhook:
        """Create a webhook; `config` has groups, verdicts, enabled, secret. Only this answer contains the secret."""
        return self.run(alertcalls.create_webhook({"url": url, **config}))

    def put_webhook(self, webhook: str, **change: Any) -> Webhook:
        """Change the webhook with this id; `change` has url, groups, verdicts, enabled, secret."""
        return self.run(alertcalls.put_webhook(webhook, change))

    def delete_webhook(self, webhook: str) -> None:
        """Delete the webhook with this id and its deliveries."""
        self.run(alertcalls.delete_webhook(webhook))

    def test_webhook(self, webhook: str) -> Delivery:
        """Send a test to the webhook with this id, and return its delivery."""
        return self.run(alertcalls.test_webhook(webhook))

    def list_deliveries(self, webhook: str, *, status: str | None = None, limit: int = 100) -> list[Delivery]:
        """Return a webhook's deliveries, newest first; `status` is `pending`, `delivered` or `failed`, None for all."""
        return self.run(alertcalls.list_deliveries(webhook, status=status, limit=limit)).items

    def get_cluster(self) -> Cluster:
        """Return the current state of name servers and brokers."""
        return self.run(calls.get_cluster())

    def list_keys(self, *, revoked: bool = False) -> list[Key]:
        """Return the API keys without their secret parts; with `revoked`, revoked keys too."""
        return self._all_pages(lambda cursor: calls.list_keys(revoked=revoked, cursor=cursor))

    def create_key(self, name: str, rights: Rights) -> Key:
        """Create an API key. Only this answer contains the key itself."""
        return self.run(calls.create_key(name, rights))

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        self.run(calls.revoke_key(key_id))

    def create_ticket(self) -> Ticket:
        """Create a one-use ticket for a browser's WebSocket."""
        return self.run(calls.create_ticket())

    def list_audit(self, *, kind: str | None = None, name: str | None = None) -> list[AuditEntry]:
        """Return changes of metadata, newest first, of a `kind` such as `topic`; `name` needs `kind`."""
        return self._all_pages(lambda cursor: calls.list_audit(kind=kind, name=name, cursor=cursor))

    def list_reports(self) -> list[Report]:
        """Return the report jobs with their schedules and last runs."""
        return self.run(reportcalls.list_reports()).items

    def start_report_run(self, job: str, *, since: str | None = None, until: str | None = None) -> ReportRun:
        """Start a run of a report job, for now or for a period. If there is such a run already, return that one."""
        return self.run(reportcalls.start_report_run(job, since=since, until=until))

    def list_report_runs(self, job: str, *, limit: int = 100) -> list[ReportRun]:
        """Return a job's runs, newest first."""
        return self.run(reportcalls.list_report_runs(job, limit=limit)).items

    def get_report_run(self, job: str, run: str = "latest") -> ReportRun:
        """Return a run of a report job."""
        return self.run(reportcalls.get_report_run(job, run))

    def get_report_page(self, job: str, run: str = "latest") -> str:
        """Return a run's page as one HTML file."""
        return self.run(reportcalls.get_report_page(job, run))

    def read_lag_rows(
        self, run: str = "latest", *, group: str | None = None, topic: str | None = None, level: str | None = None
    ) -> LagRows:
        """Return the rows of one run of the lag report; `level` is `topic` or `queue`, None for both."""
        page = self.run(reportcalls.read_lag_rows(run, group=group, topic=topic, level=level, cursor=None))
        self._add_pages(
            page,
            # The other pages use the run's id, because `latest` may be another run by now.
            lambda cursor: reportcalls.read_lag_rows(page.run, group=group, topic=topic, level=level, cursor=cursor),
        )
        return LagRows(page.run, page.as_of, page.items)

    def read_lag_history(
        self, group: str, topic: str, *, since: str | None = None, until: str | None = None
    ) -> LagHistory:
        """Return the history of a group's lag on a topic, in messages and seconds; the default is the last day."""
        return self.run(reportcalls.read_lag_history(group, topic, since=since, until=until))

    def read_backlog_rows(
        self, run: str = "latest", *, group: str | None = None, topic: str | None = None, section: str | None = None
    ) -> BacklogRows:
        """Return the rows of one run of the backlog profile; `section` None means all sections."""
        call = functools.partial(reportcalls.read_backlog_rows, group=group, topic=topic, section=section)
        page = self.run(call(run, cursor=None))
        self._add_pages(page, lambda cursor: call(page.run, cursor=cursor))
        return BacklogRows(page.run, page.as_of, page.items)

    def read_throughput(
        self,
        unit: str = "hour",
        *,
        since: str | None = None,
        until: str | None = None,
        time_zone: str | None = None,
        group: str | None = None,
        topic: str | None = None,
    ) -> Throughput:
        """Return the throughput by `minute`, `hour` or `day`; days are those of `time_zone`."""
        call = functools.partial(reportcalls.read_throughput, unit, time_zone=time_zone, group=group, topic=topic)
        page = self.run(call(since=since, until=until, cursor=None))
        # The other pages use the times of the first answer, because a default time moves on.
        self._add_pages(page, lambda cursor: call(since=page.since, until=page.until, cursor=cursor))
        return Throughput(page.unit, page.since, page.until, page.time_zone, page.items)

    def _all_pages(self, page_at: Callable[[str | None], Call[Page[T]]]) -> list[T]:
        page = self.run(page_at(None))
        self._add_pages(page, page_at)
        return page.items

    def _add_pages(self, first: Paged, page_at: Callable[[str], Call[Paged]]) -> None:
        """Append the items of the later pages to those of the first page."""
        cursor = first.next_cursor
        while cursor is not None:
            page = self.run(page_at(cursor))
            first.items.extend(page.items)
            cursor = page.next_cursor
