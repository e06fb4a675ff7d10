"""Commits of acknowledged offsets: all brokers at once, and one queue after the other for each broker.

A broker that hangs blocks only its own commits, neither those of other brokers nor the keeper task, which checks the
stream's key and limits. If a broker does not answer for one queue, its other queues are left for the next time, because
each of them would wait as long.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gantry.client.errors import BrokerError, ClientError, InvalidArgumentError
from gantry.model.message import MessageQueue
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.ws.feed import Feed
from services.gateway.ws.ports import Membership
from services.gateway.ws.session import Session

log = logger("gateway.ws")

# Time for which a queue of an orderly subscription waits for the acks of its last batch before it moves. Messages that
# are not acknowledged by then come again at its next owner, who may then handle them at the same time.
DRAIN_MS: Final = 5_000
_DRAIN_POLL_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset to commit; with a feed, the feed is asked for the offset when the queue's turn comes."""

    membership: Membership
    queue: MessageQueue
    offset: int
    feed: Feed | None = None


async def drain(feeds: Sequence[Feed]) -> None:
    """Send nothing more from feeds whose queues are about to move, and wait until the client has acknowledged the rest.

    The wait ends after DRAIN_MS.
    """
    for feed in feeds:
        feed.is_draining = True
    for _ in range(DRAIN_MS // _DRAIN_POLL_MS):
        if not any(feed.window.messages for feed in feeds):
            return
        await asyncio.sleep(_DRAIN_POLL_MS / 1_000)


class CommitTasks:
    """The commits of one stream.

    Concurrency: one event loop.
    """

    def __init__(self, session: Session, tasks: TaskSet, memberships: Mapping[tuple[str, str], Membership]) -> None:
        """Make it; `memberships` are by names of the subscription and the topic."""
        self._session = session
        self._tasks = tasks
        self._memberships = memberships
        self._busy: set[str] = set()

    def begin(self) -> None:
        """Start the commits that are due, without waiting; leave out brokers that are busy with an earlier call."""
        for broker_name, commits in _by_broker(self._due()).items():
            if broker_name not in self._busy:
                self._busy.add(broker_name)
                task = self._tasks.spawn(self._write(commits))
                task.add_done_callback(lambda _, name=broker_name: self._busy.discard(name))  # type: ignore[misc]

    async def commit_all(self) -> None:
        """Commit what is due; return when each broker has answered or failed."""
        await self.commit(self._due())

    async def commit(self, commits: Iterable[Commit]) -> None:
        """Commit these offsets; return when each broker has answered or failed."""
        await asyncio.gather(*(self._write(each) for each in _by_broker(commits).values()))

    def _due(self) -> list[Commit]:
        return [
            Commit(membership, feed.queue, offset, feed)
            for subscription, feed, offset in self._session.commits()
            if (membership := self._memberships.get((subscription.name, feed.queue.topic))) is not None
        ]

    async def _write(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            queue, feed = commit.queue, commit.feed
            # While earlier commits were in flight, more may have been acknowledged, or the queue may have moved to
            # another consumer that is further.
            offset = commit.offset if feed is None else feed.to_commit()
            if offset is None:
                continue
            token = None if feed is None else feed.token
            try:
                await commit.membership.commit(queue, offset)
            except ClientError as error:
                name = self._session.name
                log.warning("commit failed", session=name, queue=str(queue), offset=offset, error=str(error))
                if not isinstance(error, BrokerError | InvalidArgumentError):
                    return
            else:
                if feed is not None and feed.token == token:  # Otherwise it was moved, and goes on elsewhere.
                    feed.committed = offset


def _by_broker(commits: Iterable[Commit]) -> dict[str, list[Commit]]:
    found: dict[str, list[Commit]] = {}
    for commit in commits:
        found.setdefault(commit.queue.broker_name, []).append(commit)
    return found
