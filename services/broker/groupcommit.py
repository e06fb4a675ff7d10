"""Holds the replies of sends until their messages are safe: one write and one flush serve all sends of a turn.

Theory of operation. In one turn, the loop reads the requests that have arrived on all connections. Each send appends
its record and waits here for its reply. At the end of the turn, one call writes all appended records, and the loop
wakes the store's flush thread once. The flush thread makes all written records durable with one sync and reports the
offset that it reached. Then dispatch makes these records readable: it builds the ConsumeQueues and wakes the waiting
pulls. The replies go out together with it, so that producers can read the messages for which they got a reply. The
next batch gathers while a sync runs, so the batch size grows with the load. A sync that takes a second leaves many
records to dispatch: each turn of the loop dispatches a part of them.

    loop thread    append … append │ request_flush          append … append │ request_flush flushed(A): dispatch, reply
    flush thread                                  sync A ──────────────────────────────▶ report A, sync B ─────────▶ …

With ASYNC_FLUSH, the reply goes out at the end of the turn. The same holds for a message whose producer does not want
to wait for the disk.

Durability: no reply with code 0 goes out before the message is written, so the message survives a crash of the process.
With SYNC_FLUSH, the reply goes out only after `flushed_from_thread` has reported the end of the message, so the message
survives a power failure. A message that is not flushed within `sync_flush_timeout`, or whose flush fails, gets
the reply FLUSH_DISK_TIMEOUT (10): it is stored, but may not be on disk. A message that could not be written gets
SYSTEM_ERROR (1): it may be stored or not.

Concurrency: everything runs in the loop's thread, except `flushed_from_thread` and `flush_failed_from_thread`.
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

# The content of a send's reply: stored message id (a batch has all ids, separated by commas), queue id, queue offset,
# unique key. A plain tuple, because the broker makes one for every message.
SendReply = tuple[str, int, int, str]

# Physical end of the record, time of the append (monotonic ms), channel of the reply, request without its content,
# content of the reply.
_Waiting = tuple[int, int, Channel, RemotingCommand, SendReply]


class GroupCommit:
    """The sends that wait for their reply, in the order of their records.

    Attributes:
        sync_flush: Whether sends wait for the disk.
        latency: Time from append to reply, of sends that waited for the disk.
        flush_latency: Time from the request of a flush to its report.
        timeouts: Number of sends that got FLUSH_DISK_TIMEOUT.
        has_appended: Whether anything was appended in this turn. Each caller that appends sets it, even if no reply
            waits.

    Args:
        write_out: Function that hands the appended records to the operating system and returns the offset up to which
            it has them.
        request_flush: Function that wakes the store's flush thread.
        dispatch: Function that makes a part of the confirmed messages readable or, if its argument is true, all of
            them. It returns the offset that it reached if more is left to do and it can go on, else None.
        sync_flush: Whether sends wait for the disk.
        replies: Encoder of the replies.
        clock: Clock that measures waiting times.
        policy: Limits on how many sends may wait, and for how long.
        overload: Judge of whether more may be appended; asked once a turn.
        on_readable: Callback after each dispatch.
        loop: Event loop of the thread that makes all calls.
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
        """Number of sends that wait for the disk."""
        return len(self._waiting)

    def oldest_wait_ms(self) -> int:
        """Return how many milliseconds the oldest waiting send has waited, or 0 if none waits."""
        return self._clock.monotonic_ms() - self._waiting[0][1] if self._waiting else 0

    def admit(self) -> str | None:
        """Return None if one more send may be appended in this turn, else the remark of the refusal.

        The clock is read and overload is judged once a turn. Only the number of waiting sends is checked at every call.
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
        """Hold a reply until all bytes before `next_offset`, the end of the request's last record, are safe enough.

        With SYNC_FLUSH and `for_disk`, safe means on disk; else it means written to the operating system. The request
        loses its content, because the CommitLog has the message. Otherwise a flush that takes a second would keep the
        bodies of that second in memory.
        """
        request.drop_content()
        waiting = self._waiting if for_disk and self.sync_flush else self._unwritten
        waiting.append((next_offset, self._turn_at_ms, channel, request, reply))

    def flushed_from_thread(self, offset: int) -> None:
        """Take the flush thread's report and wake the loop once for the whole group of sends."""
        try:
            self._loop.call_soon_threadsafe(self._flushed, offset)
        except RuntimeError:
            # The loop is closed: the store flushes once more while it stops, and no client waits for a reply.
            return

    def flush_failed_from_thread(self, reason: str) -> None:
        """Take the flush thread's report that a flush failed and no more reports will come."""
        try:
            self._loop.call_soon_threadsafe(self._flush_failed)
        except RuntimeError:
            return

    def sweep(self) -> None:
        """Reply FLUSH_DISK_TIMEOUT to sends that have waited too long. A timer calls this."""
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
        """Reply FLUSH_DISK_TIMEOUT to all waiting sends: it is unknown which of their messages are on disk.

        The store refuses later sends and gives the reason.
        """
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
        """Dispatch the confirmed messages, send the replies for them, and wake the pulls that wait for them."""
        if not self._is_continuing:
            self._make_some_readable()

    def _make_some_readable(self) -> None:
        # The sends of one turn are few, so ASYNC_FLUSH dispatches all. Only a sync can hold up many records.
        readable_offset = self._dispatch(not self.sync_flush)
        if readable_offset is None:
            self._answer_flushed(self._flushed_offset)
        else:
            self._answer_flushed(min(readable_offset, self._flushed_offset))
            self._loop.call_soon(self._make_some_readable)
        self._is_continuing = readable_offset is not None
        self._on_readable()
