"""The methods of both clients for reports."""

import functools

from gantry.http import reportcalls
from gantry.http.baseclient import AsyncBaseClient, BaseClient
from gantry.http.reportresults import BacklogRows, LagHistory, LagRows, Report, ReportRun, Throughput


class ReportClient(BaseClient):
    """Reports: runs, rows, pages."""

    def list_reports(self) -> list[Report]:
        """Return the report jobs with their schedules and last runs."""
        return self.run(reportcalls.list_reports()).items

    def put_report_schedule(self, job: str, cron: str | None, *, time_zone: str = "UTC") -> Report:
        """Set the schedule of a report job. Without a cron expression, the job runs on demand only."""
        return self.run(reportcalls.put_report_schedule(job, cron, time_zone=time_zone))

    def delete_report_schedule(self, job: str) -> Report:
        """Remove the schedule of a report job that was set, so that the scheduler's settings count."""
        return self.run(reportcalls.delete_report_schedule(job))

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


class AsyncReportClient(AsyncBaseClient):
    """Reports: runs, rows, pages."""

    async def list_reports(self) -> list[Report]:
        """Return the report jobs with their schedules and last runs."""
        return (await self.run(reportcalls.list_reports())).items

    async def put_report_schedule(self, job: str, cron: str | None, *, time_zone: str = "UTC") -> Report:
        """Set the schedule of a report job. Without a cron expression, the job runs on demand only."""
        return await self.run(reportcalls.put_report_schedule(job, cron, time_zone=time_zone))

    async def delete_report_schedule(self, job: str) -> Report:
        """Remove the schedule of a report job that was set, so that the scheduler's settings count."""
        return await self.run(reportcalls.delete_report_schedule(job))

    async def start_report_run(self, job: str, *, since: str | None = None, until: str | None = None) -> ReportRun:
        """Start a run of a report job, for now or for a period. If there is such a run already, return that one."""
        return await self.run(reportcalls.start_report_run(job, since=since, until=until))

    async def list_report_runs(self, job: str, *, limit: int = 100) -> list[ReportRun]:
        """Return a job's runs, newest first."""
        return (await self.run(reportcalls.list_report_runs(job, limit=limit))).items

    async def get_report_run(self, job: str, run: str = "latest") -> ReportRun:
        """Return a run of a report job."""
        return await self.run(reportcalls.get_report_run(job, run))

    async def get_report_page(self, job: str, run: str = "latest") -> str:
        """Return a run's page as one HTML file."""
        return await self.run(reportcalls.get_report_page(job, run))

    async def read_lag_rows(
        self, run: str = "latest", *, group: str | None = None, topic: str | None = None, level: str | None = None
    ) -> LagRows:
        """Return the rows of one run of the lag report; `level` is `topic` or `queue`, None for both."""
        page = await self.run(reportcalls.read_lag_rows(run, group=group, topic=topic, level=level, cursor=None))
        await self._add_pages(
            page,
            # The other pages use the run's id, because `latest` may be another run by now.
            lambda cursor: reportcalls.read_lag_rows(page.run, group=group, topic=topic, level=level, cursor=cursor),
        )
        return LagRows(page.run, page.as_of, page.items)

    async def read_lag_history(
        self, group: str, topic: str, *, since: str | None = None, until: str | None = None
    ) -> LagHistory:
        """Return the history of a group's lag on a topic, in messages and seconds; the default is the last day."""
        return await self.run(reportcalls.read_lag_history(group, topic, since=since, until=until))

    async def read_backlog_rows(
        self, run: str = "latest", *, group: str | None = None, topic: str | None = None, section: str | None = None
    ) -> BacklogRows:
        """Return the rows of one run of the backlog profile; `section` None means all sections."""
        call = functools.partial(reportcalls.read_backlog_rows, group=group, topic=topic, section=section)
        page = await self.run(call(run, cursor=None))
        await self._add_pages(page, lambda cursor: call(page.run, cursor=cursor))
        return BacklogRows(page.run, page.as_of, page.items)

    async def read_throughput(
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
        page = await self.run(call(since=since, until=until, cursor=None))
        # The other pages use the times of the first answer, because a default time moves on.
        await self._add_pages(page, lambda cursor: call(since=page.since, until=page.until, cursor=cursor))
        return Throughput(page.unit, page.since, page.until, page.time_zone, page.items)
