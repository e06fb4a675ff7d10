"""Between the append of a message and its answer: one write and one flush for all that was sent meanwhile.

Theory of operation. A turn of the loop reads what has arrived on all connections; each send appends its record and
waits here. At the end of the turn all of them are written with one call, and the store's flush thread is woken once.
It makes everything written so far durable with one sync and reports how far it came. Then dispatch makes that readable: it
builds the ConsumeQueues and wakes the pulls that wait. The answers go out with it, so that producers can read what they
were told is stored. While one sync runs the next batch gathers, so the batch grows with the load by itself. After a sync
that took a second there is much to dispatch: some of it is done in each turn of the loop.

    loop thread    append … append │ request_flush          append … append │ request_flush     flushed(A): dispatch, answer
    flush thread                                  sync A ──────────────────────────────────▶ report A, sync B ─────────▶ …

With ASYNC_FLUSH, and for a message whose producer does not want to wait for the disk, the answer goes out at the end
of the turn.

Durability: no answer 0 goes out before the message was written, so that it survives the process. With SYNC_FLUSH it
goes out only after `flushed` has reported the message's end, so that it survives the machine; a message that is not
flushed within `sync_flush_timeout`, or whose flush has failed, is answered FLUSH_DISK_TIMEOUT (10): stored, but not
certainly safe. A message that could not be written is answered SYSTEM_ERROR (1): it may be there or not.

Concurrency: the loop's thread, except `flushed_from_thread` and `flush_failed_from_thread`.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.replies import SendReplies
from gantry.runtime.clock import Clock
from gantry.runtime.failpoints import Failpoint, hit
from services.broker.overload import Overload
from services.broker.policy import Policy
from services.broker.stats import Latency

# What a send will be answered: the stored id (of a batch all of them, with commas between), queue id, queue offset,
# unique key. A plain tuple, as one is made for every message.
SendReply = tuple[str, int, int, str]

# Physical end of the record, when it was appended (monotonic ms), whom to answer, the request without its content,
# what to answer.
_Waiting = tuple[int, int, Channel, RemotingCommand, SendReply]


class GroupCommit:
    """The sends that wait for the disk, in the order of their records.

    Attributes:
        sync_flush: Whether sends wait.
        latency: From append to answer, of sends that waited.
        flush_latency: From the request of a flush to its report.
        timeouts: Sends answered FLUSH_DISK_TIMEOUT.
        has_appended: To be set by whoever appends in this turn, whether or not somebody waits for it.

    Args:
        write_out: Hands what was appended to the operating system; returns how far that has it.
        request_flush: Wakes the store's flush thread.
        dispatch: Makes some or, if told so, all of what is confirmed readable. Returns up to which offset, if more of it
            is left; None if not, or if it can't go on.
        sync_flush: See above.
        replies: Encodes the answers.
        clock: For waiting times.
        policy: Says how many and how long may wait.
        overload: Judges once a turn whether more may be appended.
        on_readable: Called after each dispatch.
        loop: Of the thread that all calls come from.
    """

    def __init__(
        self,
        *,
        write_out: Callable[[], int],
        request_flush: Callable[[], None],
        dispatch: Callable[[bool], int | None],
        sync_flush: bool,
        replies: SendReplies,
        clock: Clock,
        policy: Policy,
        overload: Overload,
        on_readable: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.sync_flush = sync_flush
        self.latency = Latency()
        self.flush_latency = Latency()
        self.timeouts = 0
        self._write_out = write_out
        self._request_flush = request_flush
        self._dispatch = dispatch
        self._replies = replies
        self._clock = clock
        self._policy = policy
        self._overload = overload
        self._on_readable = on_readable
        self._loop = loop
        self._waiting: deque[_Waiting] = deque()
        self._unwritten: list[_Waiting] = []
        self._is_turn_open = False
        self.has_appended = False
        self._turn_at_ms = 0
        self._refusal: str | None = None
        self._flush_began_ms: int | None = None
        self._flushed_offset = 0
        self._is_continuing = False
        self._has_failed = False

    @property
    def waiting_count(self) -> int:
        """How many sends wait."""
        return len(self._waiting)

    def oldest_wait_ms(self) -> int:
        """Return how long the first of them has waited."""
        return self._clock.monotonic_ms() - self._waiting[0][1] if self._waiting else 0

    def admit(self) -> str | None:
        """Say whether one more send may be appended in this turn; the remark that refuses it, or None.

        The clock is read and overload judged once a turn; only the count is looked at every time.
        """
        if not self._is_turn_open:
            self._open_turn()
        refusal = self._refusal
        if refusal is None and len(self._waiting) >= self._policy.send_thread_pool_queue_capacity:
            refusal = self._judge()
        if refusal is not None:
            self._overload.refused_sends += 1
        return refusal

    def wait(
        self, next_offset: int, channel: Channel, request: RemotingCommand, reply: SendReply, *, for_disk: bool
    ) -> None:
        """Keep an answer until everything up to `next_offset`, the end of the request's last record, is safe enough.

        That is on the disk with SYNC_FLUSH and `for_disk`, else with the operating system. The request loses its
        content: the log has the message, and a flush that takes a second would keep a second's bodies in memory.
        """
        request.drop_content()
        waiting = self._waiting if for_disk and self.sync_flush else self._unwritten
        waiting.append((next_offset, self._turn_at_ms, channel, request, reply))

    def flushed_from_thread(self, offset: int) -> None:
        """Take the flush thread's report; one wake-up of the loop a group."""
        try:
            self._loop.call_soon_threadsafe(self._flushed, offset)
        except RuntimeError:
            # The loop is closed: the store flushes once more while it stops, and nobody is left to be answered.
            return

    def flush_failed_from_thread(self, reason: str) -> None:
        """Take the flush thread's report that it will never report again."""
        try:
            self._loop.call_soon_threadsafe(self._flush_failed)
        except RuntimeError:
            return

    def sweep(self) -> None:
        """Answer FLUSH_DISK_TIMEOUT to those who have waited too long; called by a timer."""
        now_ms = self._clock.monotonic_ms()
        limit_ms = self._policy.sync_flush_timeout
        while self._waiting and now_ms - self._waiting[0][1] > limit_ms:
            _, _, channel, request, reply = self._waiting.popleft()
            self.timeouts += 1
            self._answer(channel, request, ResponseCode.FLUSH_DISK_TIMEOUT, reply)

    def _open_turn(self) -> None:
        self._is_turn_open = True
        self.has_appended = False
        self._turn_at_ms = self._clock.monotonic_ms()
        self._refusal = self._judge()
        self._loop.call_soon(self._end_turn)

    def _judge(self) -> str | None:
        now_ms = self._turn_at_ms
        return self._overload.send_refusal(
            waiting_count=len(self._waiting),
            oldest_wait_ms=now_ms - self._waiting[0][1] if self._waiting else 0,
            flush_ms=0 if self._flush_began_ms is None else now_ms - self._flush_began_ms,
        )

    def _end_turn(self) -> None:
        self._is_turn_open = False
        if not self.has_appended:
            return
        wrote_offset = self._write_out()
        self._answer_written(wrote_offset)
        if self._waiting and self._waiting[-1][0] > wrote_offset:
            self._refuse_unwritten(wrote_offset)
        if self.sync_flush:
            if self._flush_began_ms is None and not self._has_failed:
                self._flush_began_ms = self._turn_at_ms
            self._request_flush()
        else:
            self.make_readable()

    def _answer_written(self, wrote_offset: int) -> None:
        written, self._unwritten = self._unwritten, []
        for next_offset, _, channel, request, reply in written:
            if next_offset <= wrote_offset:
                self._answer(channel, request, 0, reply)
            else:
                self._refuse(channel, request)

    def _refuse_unwritten(self, wrote_offset: int) -> None:
        while self._waiting and self._waiting[-1][0] > wrote_offset:
            _, _, channel, request, _ = self._waiting.pop()
            self._refuse(channel, request)

    def _refuse(self, channel: Channel, request: RemotingCommand) -> None:
        remark = "the message could not be written; whether it is stored is unknown"
        channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))

    def _flushed(self, offset: int) -> None:
        hit(Failpoint.BROKER_BEFORE_REPLY)
        self._flushed_offset = offset
        now_ms = self._clock.monotonic_ms()
        if self._flush_began_ms is not None:
            self.flush_latency.observe(now_ms - self._flush_began_ms, 1)
        self._flush_began_ms = now_ms if self._waiting and self._waiting[-1][0] > offset else None
        self.make_readable()

    def _answer_flushed(self, offset: int) -> None:
        waiting = self._waiting
        if not waiting or waiting[0][0] > offset:
            return
        now_ms = self._clock.monotonic_ms()
        batch_at_ms, batch_count = now_ms, 0
        while waiting and waiting[0][0] <= offset:
            _, at_ms, channel, request, reply = waiting.popleft()
            self._answer(channel, request, 0, reply)
            if at_ms != batch_at_ms:
                if batch_count:
                    self.latency.observe(now_ms - batch_at_ms, batch_count)
                batch_at_ms, batch_count = at_ms, 0
            batch_count += 1
        if batch_count:
            self.latency.observe(now_ms - batch_at_ms, batch_count)

    def _flush_failed(self) -> None:
        """Answer all who wait: nobody knows what of theirs is on the disk. Later ones the store refuses, with the reason."""
        self._has_failed = True
        self._flush_began_ms = None
        self.timeouts += len(self._waiting)
        while self._waiting:
            _, _, channel, request, reply = self._waiting.popleft()
            self._answer(channel, request, ResponseCode.FLUSH_DISK_TIMEOUT, reply)

    def _answer(self, channel: Channel, request: RemotingCommand, code: int, reply: SendReply) -> None:
        message_id, queue_id, queue_offset, unique_key = reply
        frame = self._replies.frame(request, message_id, queue_id, queue_offset, unique_key, code=code)
        channel.reply_frame(request, frame)

    def make_readable(self) -> None:
        """Dispatch what is confirmed, answer those who waited for it, and wake those who wait to read it."""
        if not self._is_continuing:
            self._make_some_readable()

    def _make_some_readable(self) -> None:
        # Sends of one turn are few; only what gathered behind a sync may be many.
        readable_offset = self._dispatch(not self.sync_flush)
        if readable_offset is None:
            self._answer_flushed(self._flushed_offset)
        else:
            self._answer_flushed(min(readable_offset, self._flushed_offset))
            self._loop.call_soon(self._make_some_readable)
        self._is_continuing = readable_offset is not None
        self._on_readable()
