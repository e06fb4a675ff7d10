"""Pops and the requests about them: 200050, 200052, 200054 and 200055.

A pop that finds nothing may wait. A message wakes it, and it runs again. If another pop was faster, it waits for the rest
of its time.

A pop takes nothing before its group is on disk. A start discards the check points of a group that it does not know.

Concurrency: the loop's thread.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from gantry.model.names import pop_retry_topic
from gantry.remoting.aio.channel import REMARK_CHARS_MAX, Channel
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pop import (
    NotificationHeader,
    NotificationResponseHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PollingInfoResponseHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from gantry.runtime.clock import Clock
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.overload import Overload
from services.broker.pop.ackreplies import refuse_undurable
from services.broker.pop.checks import PopChecks
from services.broker.pop.polling import POLL_MS_MAX, PopPolling, Waiting
from services.broker.pop.positions import Positions
from services.broker.pop.taking import Batch, Found, PopRequest, Taking
from services.broker.processors.reading import read_cold
from services.broker.processors.table import PlainHandler
from services.broker.refusal import RefusalError
from services.broker.registry.persistence import NotSavedError
from services.broker.stats import BrokerStats
from services.broker.store.files.pages import NotInMemoryError

_COLD_READS_MAX: Final = 8
_NOTHING = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0)


class PopProcessor:
    """Answers pops.

    Attributes:
        popped: Number of messages that were given out.
    """

    def __init__(
        self,
        *,
        taking: Taking,
        positions: Positions,
        polling: PopPolling,
        checks: PopChecks,
        cold: ColdReader,
        waiters: DurabilityWaiters,
        overload: Overload,
        stats: BrokerStats,
        clock: Clock,
        created_groups: Mapping[str, object],
        save_group: Callable[[str], Awaitable[None]],
    ) -> None:
        self._taking = taking
        self._created_groups = created_groups
        self._save_group = save_group
        self._positions = positions
        self._polling = polling
        self._checks = checks
        self._cold = cold
        self._waiters = waiters
        self._overload = overload
        self._stats = stats
        self._clock = clock
        self.popped = 0

    def plain_handlers(self) -> Mapping[int, PlainHandler]:
        """Return the handler of each request code."""
        code = RequestCode
        return {
            code.POP_MESSAGE: self.pop,
            code.PEEK_MESSAGE: self.peek,
            code.NOTIFICATION: self.notify,
            code.POLLING_INFO: self.polling_info,
        }

    def pop(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[None] | None:
        """200050: give out messages."""
        header = PopMessageHeader.from_ext(request.ext_fields)
        until_ms = self._clock.monotonic_ms() + min(max(0, header.poll_time), POLL_MS_MAX)
        try:
            pop = self._checks.pop(channel, header, is_new=True)
            found = self._cold.attempt(lambda: self._taking.read(pop))
        except NotInMemoryError:
            return self._pop_cold(channel, request, pop, until_ms)
        except RefusalError as error:
            return _refused(request, error)
        return self._finish(channel, request, pop, found, until_ms)

    def _finish(
        self, channel: Channel, request: RemotingCommand, pop: PopRequest, found: Found, until_ms: int
    ) -> RemotingCommand | None:
        """Take the messages that were read in this turn of the loop, or wait for some."""
        try:
            return self._take_or_wait(channel, request, pop, found, until_ms)
        except RefusalError as error:
            return _refused(request, error)

    def _take_or_wait(
        self, channel: Channel, request: RemotingCommand, pop: PopRequest, found: Found, until_ms: int
    ) -> RemotingCommand | None:
        header = pop.header
        if header.consumer_group in self._created_groups and (found.parts or found.begins):
            self._cold.spawn(self._pop_saved(channel, request, header, until_ms))
            return None
        refusal = self._waiters.admit() if found.parts else None
        if refusal is not None:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, refusal)
        batch = self._taking.take(pop, found)
        if batch is not None:
            request.drop_content()
            self._waiters.wait(batch.end, self._taken, channel, request, pop, batch)
            return None
        if found.begins:
            self._waiters.appended()
        if until_ms <= self._clock.monotonic_ms() or request.is_one_way:
            return self._nothing(request, header, ResponseCode.POLLING_TIMEOUT)
        if self._overload.pull_refusal(held_count=self._polling.count) is not None:
            return self._nothing(request, header, ResponseCode.POLLING_FULL)
        self._hold(channel, request, pop, until_ms)
        if found.left:
            # The filter has left out all messages that were read. Some that match may lie behind them.
            self._polling.wake_one(header.topic, header.consumer_group)
        return None

    async def _pop_saved(
        self, channel: Channel, request: RemotingCommand, header: PopMessageHeader, until_ms: int
    ) -> None:
        """Wait until a new group is on disk, and pop again."""
        try:
            await self._save_group(header.consumer_group)
        except NotSavedError as error:
            channel.reply(request, _refused(request, RefusalError(ResponseCode.SYSTEM_ERROR, str(error))))
            return
        self._resume(channel, request, header, until_ms=until_ms)

    async def _pop_cold(self, channel: Channel, request: RemotingCommand, pop: PopRequest, until_ms: int) -> None:
        """Read messages from the disk, and pop again. Other pops may have taken them meanwhile."""
        reply: RemotingCommand | None
        try:
            pop, found = await self._read_cold(channel, pop)
            reply = self._take_or_wait(channel, request, pop, found, until_ms)
        except RefusalError as error:
            reply = _refused(request, error)
        if reply is not None:
            channel.reply(request, reply)

    async def _read_cold(self, channel: Channel, pop: PopRequest) -> tuple[PopRequest, Found]:
        for _ in range(_COLD_READS_MAX):
            await read_cold(self._cold, channel, partial(self._taking.read, pop))
            pop = self._checks.pop(channel, pop.header)
            try:
                return pop, self._cold.attempt(partial(self._taking.read, pop))
            except NotInMemoryError:
                continue
        raise RefusalError(ResponseCode.SYSTEM_BUSY, "the messages could not be read from the disk in time; try again")

    def _taken(
        self, outcome: Outcome, channel: Channel, request: RemotingCommand, pop: PopRequest, batch: Batch
    ) -> None:
        """Reply, when the check points are durable."""
        is_durable = outcome is Outcome.DURABLE
        for key, position, next_offset in batch.moves:
            self._positions.stored(key, position, next_offset, is_durable=is_durable)
        for point in batch.points:
            point.is_stored = True
        if not is_durable:
            # The messages stay hidden for their time: it is unknown whether the check points are on disk.
            channel.reply(request, _refused(request, refuse_undurable(outcome)))
            return
        topic, group = pop.header.topic, pop.header.consumer_group
        flow = self._stats.get_flow(topic, group, self._clock.now_ms())
        flow.messages += batch.count
        flow.calls += 1
        flow.size_bytes += len(batch.body)
        self._stats.get_found += 1
        self.popped += batch.count
        channel.reply(
            request,
            RemotingCommand.response_to(request, ResponseCode.SUCCESS, batch.response, remark="FOUND", body=batch.body),
        )
        if batch.response.rest_num:
            self._polling.wake_one(topic, group)
            self._polling.wake()

    def _hold(self, channel: Channel, request: RemotingCommand, pop: PopRequest, until_ms: int) -> None:
        header = pop.header
        request.drop_content()

        def resume(is_over: bool) -> None:
            self._resume(channel, request, header, until_ms=0 if is_over else until_ms)

        self._polling.hold(self._waiting(channel, request, pop, until_ms, takes=True, resume=resume))

    def _waiting(
        self,
        channel: Channel,
        request: RemotingCommand,
        pop: PopRequest,
        until_ms: int,
        *,
        takes: bool,
        resume: Callable[[bool], None],
    ) -> Waiting:
        header = pop.header
        topic, group = header.topic, header.consumer_group
        return Waiting(
            topic,
            group,
            header.queue_id,
            pop.filter.unit,
            channel,
            until_ms=until_ms,
            takes=takes,
            retry_topics=tuple(pop_retry_topic(group, topic, is_v2=is_v2) for is_v2 in (False, True)),
            resume=resume,
            fail=lambda error: _fail(channel, request, error),
        )

    def _resume(self, channel: Channel, request: RemotingCommand, header: PopMessageHeader, *, until_ms: int) -> None:
        """Run a waiting pop again. The results of its checks may have changed, so the checks run again too."""
        if channel.closed:
            return
        reply: RemotingCommand | None
        try:
            pop = self._checks.pop(channel, header)
            found = self._cold.attempt(lambda: self._taking.read(pop))
            reply = self._finish(channel, request, pop, found, until_ms)
        except NotInMemoryError:
            self._cold.spawn(self._pop_cold(channel, request, pop, until_ms))
            return
        except RefusalError as error:
            reply = _refused(request, error)
        if reply is not None:
            channel.reply(request, reply)

    def _nothing(self, request: RemotingCommand, header: PopMessageHeader, code: ResponseCode) -> RemotingCommand:
        self._stats.get_missed += 1
        response = PopMessageResponseHeader(
            pop_time=self._clock.now_ms(),
            invisible_time=header.invisible_time,
            revive_qid=0,
            rest_num=0,
            start_offset_info="",
            msg_offset_info="",
        )
        return RemotingCommand.response_to(request, code, response, remark="NO_MESSAGE_IN_QUEUE")

    def peek(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """200052: return the messages that a pop would give out, and take none."""
        header = PeekMessageHeader.from_ext(request.ext_fields)
        try:
            pop = self._checks.pop(channel, _as_pop(header, header.max_msg_nums), is_new=True)
        except RefusalError as error:
            return _refused(request, error)
        try:
            return self._peeked(request, self._cold.attempt(lambda: self._taking.read(pop)))
        except NotInMemoryError:
            return self._peek_cold(channel, request, pop)

    async def _peek_cold(self, channel: Channel, request: RemotingCommand, pop: PopRequest) -> RemotingCommand:
        return self._peeked(request, await read_cold(self._cold, channel, lambda: self._taking.read(pop)))

    def _peeked(self, request: RemotingCommand, found: Found) -> RemotingCommand:
        body = b"".join(record for part in found.parts for record in part.result.records)
        if not body:
            return RemotingCommand.response_to(
                request, ResponseCode.PULL_NOT_FOUND, _NOTHING, remark="NO_MESSAGE_IN_QUEUE"
            )
        response = PopMessageResponseHeader(
            pop_time=self._clock.now_ms(), invisible_time=0, revive_qid=0, rest_num=found.left
        )
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, response, remark="FOUND", body=body)

    def notify(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200054: say whether there is a message; wait for one if there is none."""
        header = NotificationHeader.from_ext(request.ext_fields)
        pop = self._checks.pop(channel, _as_pop(header, 1), is_new=True)
        if self._taking.has_message(pop):
            return _notified(request, has_message=True)
        if header.poll_time <= 0 or request.is_one_way:
            return _notified(request, has_message=False)
        if self._overload.pull_refusal(held_count=self._polling.count) is not None:
            return _notified(request, has_message=False, is_full=True)
        request.drop_content()

        def resume(is_over: bool) -> None:
            try:
                has_message = self._taking.has_message(self._checks.pop(channel, pop.header))
                reply = _notified(request, has_message=has_message)
            except RefusalError as error:
                reply = error.reply_to(request)
            channel.reply(request, reply)

        until_ms = self._clock.monotonic_ms() + min(header.poll_time, POLL_MS_MAX)
        self._polling.hold(self._waiting(channel, request, pop, until_ms, takes=False, resume=resume))
        return None

    def polling_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200055: return how many pops of a group wait."""
        header = PollingInfoHeader.from_ext(request.ext_fields)
        self._checks.topic(header.topic, header.queue_id)
        number = self._polling.waiting_count(header.topic, header.consumer_group, header.queue_id)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, PollingInfoResponseHeader(polling_num=number))


def _as_pop(header: PeekMessageHeader | NotificationHeader, count: int) -> PopMessageHeader:
    """Return the pop that a request asks about."""
    return PopMessageHeader(
        consumer_group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        max_msg_nums=count,
        invisible_time=1,
        poll_time=0,
        born_time=0,
        init_mode=0,
        exp_type=header.exp_type if isinstance(header, NotificationHeader) else None,
        exp=header.exp if isinstance(header, NotificationHeader) else None,
        order=header.order if isinstance(header, NotificationHeader) else None,
        attempt_id=header.attempt_id if isinstance(header, NotificationHeader) else None,
    )


def _notified(request: RemotingCommand, *, has_message: bool, is_full: bool = False) -> RemotingCommand:
    response = NotificationResponseHeader(has_msg=has_message, polling_full=is_full)
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, response)


def _refused(request: RemotingCommand, error: RefusalError) -> RemotingCommand:
    """Return the reply to a refused pop: clients expect the numbers of the header even then."""
    return RemotingCommand.response_to(request, error.code, _NOTHING, remark=error.remark)


def _fail(channel: Channel, request: RemotingCommand, error: Exception) -> None:
    remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
    channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))
