"""The loop of the scheduler: it takes a turn in Postgres, starts a worker for each claimed run, and repeats.

Failures of a job, of Java or of Postgres end only one run or one turn, and the loop continues.
"""

import asyncio
from uuid import UUID

import psycopg

from gantry.runtime.lifecycle import Lifecycle
from gantry.runtime.tasks import wait_for_event
from gantry.runtime.telemetry import logger
from spark.postgres import reason
from spark.reportfiles import is_uri, remove_run
from spark.runs import Run
from spark.scheduler.children import Children
from spark.scheduler.decide import EndedRun, RunEnding
from spark.scheduler.leadership import Leadership
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.turns import TurnResult, Turns

log = logger("scheduler")

TURN_TIMEOUT_S = 15.0
"""A turn has some dozen statements. If the server hangs, the scheduler breaks the connection and opens a new one."""
AWAY_PAUSE_S = 2.0
LAST_TURN_TIMEOUT_S = 2.0


class Scheduler:
    """Runs jobs until it is told to stop.

    Concurrency: one event loop; turns are taken in a worker thread, one at a time.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        lifecycle: Lifecycle,
        *,
        leadership: Leadership,
        turns: Turns,
        children: Children,
    ) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._leadership = leadership
        self._turns = turns
        self._children = children
        self._own: dict[UUID, Run] = {}
        self._ended: list[EndedRun] = []
        self._wake = asyncio.Event()
        self._tending: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Future[TurnResult] | None = None
        self._is_away = False
        self._is_stopping = False

    async def run(self) -> None:
        """Take turns until the process is told to stop; then end the jobs and record their endings."""
        turning = self._lifecycle.scope.spawn("turns", self._turn_until_stopped())
        try:
            await self._lifecycle.wait_for_stop()
        finally:
            self._is_stopping = True
            self._wake.set()
            self._children.stop()
            # The task ends by itself. If it has failed, wait_for_stop raises its error.
            _, waiting = await asyncio.wait({turning}, timeout=LAST_TURN_TIMEOUT_S)
            if waiting:
                self._leadership.cut()
                await asyncio.wait({turning})
            # The last turn may have claimed runs.
            while self._tending:
                await asyncio.wait(self._tending)
            if self._ended:
                await self._turn(LAST_TURN_TIMEOUT_S)
            await self._children.close()
            self._leadership.drop()

    async def _turn_until_stopped(self) -> None:
        while not self._is_stopping:
            result = await self._turn(TURN_TIMEOUT_S)
            for run in result.claimed:
                self._own[run.id] = run
                task = self._lifecycle.scope.spawn(f"run-{run.id}", self._run_to_end(run))
                self._tending.add(task)
                task.add_done_callback(self._tending.discard)
            if result.ahead is not None and len(self._own) < self._settings.runs_max:
                self._children.make_ready(result.ahead.job, within_s=result.ahead_s)
            if result.pruned:
                if is_uri(self._settings.output):
                    self._children.remove_later(result.pruned)
                await self._lifecycle.scope.in_thread("files", self._remove, result)
            pause_s = AWAY_PAUSE_S if self._is_away else self._settings.poll_interval_ms / 1_000
            # A run that ends sets the event, so that the next run of its job need not wait for the pause.
            await wait_for_event(self._wake, pause_s)
            self._wake.clear()

    async def _turn(self, timeout_s: float) -> TurnResult:
        # A waiting thread can't be ended, only its connection. So at most one turn is active.
        if self._taking is None:
            self._taking = asyncio.ensure_future(
                self._lifecycle.scope.in_thread(
                    "database",
                    lambda: self._turns.take(list(self._ended), own=dict(self._own), may_claim=not self._is_stopping),
                )
            )
        await asyncio.wait({self._taking}, timeout=timeout_s)
        if not self._taking.done():
            self._leadership.cut()
            self._log_unavailable(f"Postgres did not answer within {timeout_s:g} s")
            return TurnResult()
        taken, self._taking = self._taking, None
        try:
            result = taken.result()
        except psycopg.Error as error:
            self._log_unavailable(reason(error))
            return TurnResult()
        if self._is_away:
            self._is_away = False
            log.info("Postgres answers again")
        self._ended = [one for one in self._ended if one not in result.settled]
        return result

    async def _run_to_end(self, run: Run) -> None:
        ended = await self._children.run(run)
        del self._own[run.id]
        if ended.ending is RunEnding.DONE and not self._own:
            self._children.record_classes()
        self._ended.append(ended)
        self._wake.set()

    def _log_unavailable(self, why: str) -> None:
        if not self._is_away:
            log.warning("Postgres can't be used, so no reports are made", reason=why)
        self._is_away = True

    def _remove(self, result: TurnResult) -> None:
        for run in result.pruned:
            # If the output is a URI, this folder has only logs.
            remove_run(self._settings.log_folder, run.job, run.id, with_log=True)
            if not is_uri(self._settings.output):
                remove_run(self._settings.output, run.job, run.id, with_log=True)
