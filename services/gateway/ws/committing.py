"""What is acked on its way to the brokers: each broker is told by itself, one queue after the other.

A broker that hangs holds up nobody but itself: not the offsets of other brokers' queues, and not the keeper, who has the
stream's key and its limits to look after. Where a broker does not answer for one queue, those behind it are left for the
next time, as each of them would wait as long.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gantry.client.errors import BrokerError, ClientError, InvalidArgumentError
from gantry.model.message import MessageQueue
from gantry.runtime.tasks import TaskBag
from gantry.runtime.telemetry import logger
from services.gateway.ws.feed import Feed
from services.gateway.ws.ports import Membership
from services.gateway.ws.session import Session

log = logger("gateway.ws")


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset to be written; where there is a feed, the offset is what that says when it is this queue's turn."""

    membership: Membership
    queue: MessageQueue
    offset: int
    feed: Feed | None = None


class Committing:
    """The commits of one stream.

    Concurrency: one event loop.
    """

    def __init__(self, session: Session, tasks: TaskBag, memberships: Mapping[str, Membership]) -> None:
        self._session = session
        self._tasks = tasks
        self._memberships = memberships
        self._busy: set[str] = set()

    def begin(self) -> None:
        """Commit what is due and wait for nothing; a broker that is still busy with an earlier call is left out."""
        for broker_name, commits in _by_broker(self._due()).items():
            if broker_name not in self._busy:
                self._busy.add(broker_name)
                task = self._tasks.spawn(self._write(commits))
                task.add_done_callback(lambda _, name=broker_name: self._busy.discard(name))  # type: ignore[misc]

    async def commit_all(self) -> None:
        """Commit what is due; returns when each broker has answered or failed to."""
        await self.commit(self._due())

    async def commit(self, commits: Iterable[Commit]) -> None:
        """Commit these; returns when each broker has answered or failed to."""
        await asyncio.gather(*(self._write(each) for each in _by_broker(commits).values()))

    def _due(self) -> list[Commit]:
        return [
            Commit(self._memberships[subscription.name], feed.queue, offset, feed)
            for subscription, feed, offset in self._session.commits()
            if subscription.name in self._memberships
        ]

    async def _write(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            queue, feed = commit.queue, commit.feed
            # While those before were under way, more was acked, or the queue has gone to somebody who is further.
            offset = commit.offset if feed is None else feed.to_commit()
            if offset is None:
                continue
            try:
                await commit.membership.commit(queue, offset)
            except ClientError as error:
                name = self._session.name
                log.warning("commit failed", session=name, queue=str(queue), offset=offset, error=str(error))
                if not isinstance(error, BrokerError | InvalidArgumentError):
                    return
            else:
                if feed is not None:
                    feed.committed = offset


def _by_broker(commits: Iterable[Commit]) -> dict[str, list[Commit]]:
    found: dict[str, list[Commit]] = {}
    for commit in commits:
        found.setdefault(commit.queue.broker_name, []).append(commit)
    return found
