"""One stream: carries out the decisions of its session.

A stream has these tasks, which all end with it: the reader (the caller of `run`), the writer (outbox.py), one puller
for each assigned queue, one task for each publish, and the keeper, which commits, finds overdue messages and checks the
key. On the way of a message, none of them waits for another.

However a stream ends, acknowledged offsets are committed and the groups are left, so that other members get its queues
at once.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.gateway.metrics import GatewayMetrics
from services.gateway.quotas import Quota
from services.gateway.turns import Turn
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.ws.effects import (
    IDENTITY,
    INTERNAL_ERROR,
    LIMIT,
    TOO_SLOW,
    Close,
    Effect,
    Join,
    JoinRetries,
    Leave,
    OpenTail,
    Poisoned,
    Produce,
    Publish,
    Return,
    Send,
    Wake,
    WakeFeed,
)
from services.gateway.ws.inbound import Charge
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.memberships import MembershipTasks
from services.gateway.ws.outbox import Outbox
from services.gateway.ws.ports import Consumers, FrameReading, KnownCallers, Publisher, Puller, TailSource
from services.gateway.ws.producers import StreamProducers
from services.gateway.ws.producing import Done
from services.gateway.ws.publishing import PublishTasks, TakeSend
from services.gateway.ws.pulling import PullTasks
from services.gateway.ws.returning import ReturnTasks
from services.gateway.ws.session import Session
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription
from services.gateway.ws.tailing import TailTasks

log = logger("gateway.ws")

KEEPER_INTERVAL_MS: Final = 1_000
KEY_CHECK_MS: Final = 5_000
# Time-out for writing the goodbye frame to a peer that may no longer read.
GOODBYE_TIMEOUT_S: Final = 2.0
# Time-outs for the last commits, and then for leaving the groups. A broker that does not answer notices the end of the
# member by itself.
COMMIT_TIMEOUT_S: Final = 3.0
LEAVE_TIMEOUT_S: Final = 5.0

# A client with a backlog that takes fewer bytes than this between two ticks of the keeper is slow.
FAST_BYTES_PER_TICK: Final = 1024 * 1024

Event = MutableMapping[str, Any]


class StreamConnection:
    """A stream from its welcome to its end.

    Concurrency: one event loop. Everything that changes the session is a plain call, so nothing else runs meanwhile.
    """

    close_code: int | None = None
    _close_reason = ""
    _is_over = False

    def __init__(
        self,
        session: Session,
        *,
        is_text: bool,
        receive: Callable[[], Awaitable[Event]],
        send: Callable[[Event], Awaitable[None]],
        abort: Callable[[], None],
        consumers: Consumers,
        tails: TailSource,
        publisher: Publisher,
        producers: StreamProducers,
        callers: KnownCallers,
        waiting: Quota,
        unsent: Quota,
        charge: Charge,
        take_send: TakeSend,
        turn: Turn,
        reading: FrameReading,
        taken: Callable[[], Awaitable[None]],
        key_id: str,
        credential: str,
        limits: StreamLimits,
        metrics: GatewayMetrics,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self.session = session
        self._is_text = is_text
        self._receive, self._send, self._abort = receive, send, abort
        self._producers = producers
        self._callers, self._credential = callers, credential
        self._limits, self._metrics, self._reading, self._clock = limits, metrics, reading, clock
        self._tasks = TaskSet(f"stream.{session.name}", self._task_failed)
        count = functools.partial(unsent.change, key_id)
        self._outbox = Outbox(
            self._write, taken=taken, count=count, monotonic_ms=clock.monotonic_ms, on_room=self._has_room
        )
        self._memberships = MembershipTasks(session, self._tasks, consumers, apply=self._apply, rng=rng)
        self._tails = TailTasks(session, self._tasks, tails, apply=self._apply, clock=clock, rng=rng)
        self._committing = self._memberships.committing
        self._returning = ReturnTasks(session, self._tasks, self._memberships, apply=self._apply, metrics=metrics)
        self._pulling = PullTasks(
            session,
            self._tasks,
            apply=self._apply,
            puller_of=self._puller_of,
            end_if_deleted=self._memberships.end_if_deleted,
            waiting=waiting,
            turn=turn,
            key_id=key_id,
            clock=clock,
            rng=rng,
        )
        self._memberships.use(self._pulling)
        self._tails.use(self._pulling)
        self._publishing = PublishTasks(
            session,
            self._tasks,
            publisher,
            apply=self._apply,
            unsent=unsent,
            key_id=key_id,
            charge=charge,
            take_send=take_send,
            turn=turn,
            limits=limits,
            is_text=is_text,
        )
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the stream until either side ends it."""
        writer = self._tasks.spawn(self._write_all())
        self._tasks.spawn(self._keep())
        self._apply(self.session.open())
        self._reader = self._tasks.spawn(self._read())
        try:
            await asyncio.wait({self._reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if self.close_code is not None and not writer.done():
                await self._say_goodbye()
        finally:
            await self._end()

    def close(self, code: int, reason: str, *, retry: bool = False, after_ms: int = 0) -> None:
        """Send a goodbye frame and end the stream soon after."""
        self._apply(self.session.close(code, reason, retry=retry, after_ms=after_ms))

    def may_ask(self, check: TransactionCheck) -> bool:
        """Return whether the client can be asked about a transaction."""
        return self.session.checks.may_ask(check)

    def ask(self, check: TransactionCheck, done: Done) -> None:
        """Ask the client about a transaction; `done` is called with the answer, or with None if the stream ends."""
        self._apply(self.session.checks.ask(check, done))

    def drop(self, transaction: str) -> None:
        """Stop waiting for an answer."""
        self.session.checks.drop(transaction)

    def _apply(self, effects: Iterable[Effect]) -> None:
        if self._is_over:
            return
        session, outbox = self.session, self._outbox
        while effects:
            for effect in effects:
                if isinstance(effect, Send):
                    outbox.put(effect.data)
                else:
                    self._carry_out(effect)
            if outbox.is_full:
                session.delivery.block()
                return
            effects = session.more()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, (Wake, WakeFeed)):
            self._pulling.wake(effect)
        elif isinstance(effect, (Join, JoinRetries)):
            self._memberships.begin(effect)
        elif isinstance(effect, OpenTail):
            self._tails.begin(effect)
        elif isinstance(effect, Leave):
            self._tails.stop(effect.subscription)
            self._pulling.stop_all(effect.subscription)
            self._memberships.begin(effect)
        elif isinstance(effect, Return):
            self._returning.begin(effect)
        elif isinstance(effect, Poisoned):
            self._returning.report(effect)
        elif isinstance(effect, Produce):
            self._producers.add(self, effect.groups)
        elif isinstance(effect, Publish):
            self._publishing.begin(effect)
        elif isinstance(effect, Close):
            self.close_code, self._close_reason = effect.code, effect.reason
            if self._reader is not None:
                self._reader.cancel()

    async def _puller_of(self, subscription: Subscription, topic: str) -> Puller:
        if isinstance(subscription, TailSubscription):
            return self._tails.puller_of(subscription)
        return await self._memberships.of(subscription, topic)

    def _has_room(self) -> None:
        self._apply(self.session.unblock(now_ms=self._clock.monotonic_ms()))

    async def _read(self) -> None:
        receive, session, monotonic_ms = self._receive, self.session, self._clock.monotonic_ms
        while not session.is_closed:
            # No local variable keeps the event: a frame of 8 MiB would stay in memory until the next one comes.
            if not self._take(await receive(), monotonic_ms()):
                return
            while session.is_acking:
                await asyncio.sleep(0)
                self._apply(session.continue_ack())
            # No further frames are read from a client that does not read its answers, or that publishes or returns
            # messages faster than brokers accept.
            while self._outbox.is_full or not self._publishing.has_room or not self._returning.has_room:
                await self._outbox.wait_for_room()
                await self._publishing.wait_for_room()
                await self._returning.wait_for_room()

    def _take(self, event: Event, now_ms: int) -> bool:
        """Process an event from the peer; return whether more may follow."""
        if event["type"] == "websocket.disconnect":
            return False
        if event["type"] == "gantry.limit":
            # An event of streamprotocol.py: the frame that exceeded the limit never gets here.
            self.close(LIMIT, event["reason"])
            return False
        data = event.get("bytes")
        is_text = event.get("is_text", data is None)
        if data is None:
            data = event["text"].encode()
        self._apply(self.session.receive(data, is_text=is_text, now_ms=now_ms))
        return True

    async def _write_all(self) -> None:
        with contextlib.suppress(OSError):  # The peer has disconnected; uvicorn raises a subclass of OSError.
            await self._outbox.run()

    async def _write(self, frame: bytes) -> None:
        content = {"text": frame.decode()} if self._is_text else {"bytes": frame}
        await self._send({"type": "websocket.send", **content})

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                await self._outbox.wait_until_written()
                await self._send(
                    {"type": "websocket.close", "code": self.close_code, "reason": self._close_reason[:100]}
                )
        except TimeoutError:
            # The peer does not read, so the socket would keep the written bytes for ever; it is aborted.
            self._abort()
        except OSError:
            return  # The peer has disconnected, so the goodbye cannot be sent.

    async def _keep(self) -> None:
        checked_at_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(min(self._limits.commit_ms, KEEPER_INTERVAL_MS) / 1_000)
            now_ms = self._clock.monotonic_ms()
            if self._outbox.stalled_ms() > self._limits.slow_consumer_ms:
                self.close(
                    TOO_SLOW, f"the client did not take a frame within {self._limits.slow_consumer_ms} ms", retry=True
                )
                return
            if self._reading.message_ms() > self._limits.message_timeout_ms:
                self._close_late()
                return
            self._reading.resume_if_room()
            if self.session.delivery.is_blocked and not self._outbox.is_full:
                # The key had too many unsent bytes before, perhaps on other streams.
                self._has_room()
            is_slow = self._outbox.is_full and self._outbox.take_written() < FAST_BYTES_PER_TICK
            self._apply(self.session.delivery.set_slow(is_slow))
            if now_ms - checked_at_ms >= KEY_CHECK_MS:
                checked_at_ms = now_ms
                if self._callers.principal_of(self._credential) is None:
                    self.close(IDENTITY, "the key was revoked, or the session has ended")
                    return
            self._apply(
                self.session.tick(
                    overdue_before_ms=lambda each, now=now_ms: now - self._memberships.timeout_ms(each),  # type: ignore[misc]
                    now_ms=now_ms,
                )
            )
            self._metrics.count("stream_messages", self.session.take_pushed())
            self._metrics.gauges["stream_held_bytes"] = self.session.delivery.shared.bytes
            self._committing.begin()

    def _close_late(self) -> None:
        """Send a goodbye to a client whose message did not arrive in time."""
        late = f"a message was not complete after {self._limits.message_timeout_ms} ms"
        code, reason = TOO_SLOW, "stream_slow_message"
        if self._reading.waits_for_room:
            code, reason, late = LIMIT, "stream_no_room", f"{late}, because bodies and messages leave no room for it"
        self._metrics.refused_connection(reason)
        self.close(code, late, retry=True)

    async def _end(self) -> None:
        self._producers.remove(self, self.session.checks.groups)
        self.session.end()
        self._metrics.count("stream_messages", self.session.take_pushed())
        try:
            await self._memberships.wait_until_left(LEAVE_TIMEOUT_S)
            await self._tasks.cancel()
            # Each step has its own time-out: a broker that hangs must not keep the stream in its groups for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_TIMEOUT_S):
                    await self._committing.commit_all()
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._memberships.leave_all()
        except TimeoutError:
            log.warning("groups were left without notice to their brokers", session=self.session.name)
        finally:
            self._outbox.drop()
            self._pulling.forget()
            self._is_over = True
            # These objects hold callbacks to this one; the cycles would otherwise wait for the garbage collector.
            self._memberships.end()
            self._tails.end()
            del self._outbox, self._pulling, self._publishing, self._committing, self._tasks, self._reader
            del self._memberships, self._returning, self._tails

    def _task_failed(self, error: BaseException) -> None:
        log.error("a task of a stream failed", session=self.session.name, error=repr(error), exc_info=error)
        self.close(INTERNAL_ERROR, "internal error; the log of the gateway has the reason", retry=True)
