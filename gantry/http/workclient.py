"""The methods of both clients for jobs, dead letters, scheduled messages and producer groups."""

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from gantry.http import workcalls
from gantry.http.baseclient import AsyncBaseClient, BaseClient
from gantry.http.workresults import DeadLetter, Job, ProducerGroup, RedriveTrial, Rescheduled, ScheduledMessage


class WorkClient(BaseClient):
    """Jobs, dead letters, scheduled messages and producer groups."""

    def list_jobs(self, *, kind: str | None = None, state: str | None = None) -> list[Job]:
        """Return the jobs that the key may see, newest first."""
        return self._all_pages(lambda cursor: workcalls.list_jobs(kind=kind, state=state, cursor=cursor))

    def get_job(self, job: str) -> Job:
        """Return a job with its progress."""
        return self.run(workcalls.get_job(job))

    def cancel_job(self, job: str) -> Job:
        """Ask for the end of a job. A running job stops within seconds, and what it has done stays done."""
        return self.run(workcalls.cancel_job(job))

    def list_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        tag: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Return dead letters of a group, newest first. `topic` is the topic of their origin."""
        call = functools.partial(workcalls.list_dead_letters, group, topic=topic, tag=tag, since=since, until=until)
        return self._some_pages(limit, call)

    def export_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        tag: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Iterator[bytes]:
        """Yield all dead letters as bytes of JSON, one letter a line, oldest first on each broker."""
        return self.stream(workcalls.export_dead_letters(group, topic=topic, tag=tag, since=since, until=until))

    def redrive_dead_letters(self, group: str, **wanted: Any) -> Job:
        """Start a job that sends dead letters again; `wanted` has message_ids or filter, to, rate_per_s."""
        return self.run(workcalls.redrive_dead_letters(group, wanted))

    def try_redrive(self, group: str, **wanted: Any) -> RedriveTrial:
        """Return the dead letters that `redrive_dead_letters` would send, and send none."""
        return self.run(workcalls.try_redrive(group, wanted))

    def list_scheduled(
        self, topic: str, *, since: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[ScheduledMessage]:
        """Return messages of a topic that wait for their time, the next one first."""
        return self._some_pages(limit, functools.partial(workcalls.list_scheduled, topic, since=since, until=until))

    def recall_message(self, topic: str, handle: str) -> bool:
        """Take a scheduled message back; return whether it was still waiting."""
        return self.run(workcalls.recall_message(topic, handle))

    def reschedule_message(self, topic: str, handle: str, **time: str) -> Rescheduled:
        """Give a scheduled message another time, `delay` or `deliver_at`; it gets a new handle."""
        return self.run(workcalls.reschedule_message(topic, handle, time))

    def get_producer_group(self, group: str) -> ProducerGroup:
        """Return the URL that is asked about open transactions of a producer group."""
        return self.run(workcalls.get_producer_group(group))

    def put_producer_group(
        self, group: str, *, check_url: str | None, check_secret: str | None = None
    ) -> ProducerGroup:
        """Set the URL, or remove it with None. A new URL needs a secret; otherwise the group keeps its own."""
        call = workcalls.put_producer_group(group, check_url=check_url, check_secret=check_secret)
        return self.run(call)


class AsyncWorkClient(AsyncBaseClient):
    """Jobs, dead letters, scheduled messages and producer groups."""

    async def list_jobs(self, *, kind: str | None = None, state: str | None = None) -> list[Job]:
        """Return the jobs that the key may see, newest first."""
        return await self._all_pages(lambda cursor: workcalls.list_jobs(kind=kind, state=state, cursor=cursor))

    async def get_job(self, job: str) -> Job:
        """Return a job with its progress."""
        return await self.run(workcalls.get_job(job))

    async def cancel_job(self, job: str) -> Job:
        """Ask for the end of a job. A running job stops within seconds, and what it has done stays done."""
        return await self.run(workcalls.cancel_job(job))

    async def list_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        tag: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Return dead letters of a group, newest first. `topic` is the topic of their origin."""
        call = functools.partial(workcalls.list_dead_letters, group, topic=topic, tag=tag, since=since, until=until)
        return await self._some_pages(limit, call)

    def export_dead_letters(
        self,
        group: str,
        *,
        topic: str | None = None,
        tag: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield all dead letters as bytes of JSON, one letter a line, oldest first on each broker."""
        return self.stream(workcalls.export_dead_letters(group, topic=topic, tag=tag, since=since, until=until))

    async def redrive_dead_letters(self, group: str, **wanted: Any) -> Job:
        """Start a job that sends dead letters again; `wanted` has message_ids or filter, to, rate_per_s."""
        return await self.run(workcalls.redrive_dead_letters(group, wanted))

    async def try_redrive(self, group: str, **wanted: Any) -> RedriveTrial:
        """Return the dead letters that `redrive_dead_letters` would send, and send none."""
        return await self.run(workcalls.try_redrive(group, wanted))

    async def list_scheduled(
        self, topic: str, *, since: str | None = None, until: str | None = None, limit: int = 100
    ) -> list[ScheduledMessage]:
        """Return messages of a topic that wait for their time, the next one first."""
        return await self._some_pages(
            limit, functools.partial(workcalls.list_scheduled, topic, since=since, until=until)
        )

    async def recall_message(self, topic: str, handle: str) -> bool:
        """Take a scheduled message back; return whether it was still waiting."""
        return await self.run(workcalls.recall_message(topic, handle))

    async def reschedule_message(self, topic: str, handle: str, **time: str) -> Rescheduled:
        """Give a scheduled message another time, `delay` or `deliver_at`; it gets a new handle."""
        return await self.run(workcalls.reschedule_message(topic, handle, time))

    async def get_producer_group(self, group: str) -> ProducerGroup:
        """Return the URL that is asked about open transactions of a producer group."""
        return await self.run(workcalls.get_producer_group(group))

    async def put_producer_group(
        self, group: str, *, check_url: str | None, check_secret: str | None = None
    ) -> ProducerGroup:
        """Set the URL, or remove it with None. A new URL needs a secret; otherwise the group keeps its own."""
        call = workcalls.put_producer_group(group, check_url=check_url, check_secret=check_secret)
        return await self.run(call)
