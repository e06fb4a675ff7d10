"""A load of messages that wait, against a broker process or a broker in memory; it writes a WaitingHistory.

One producer of transactions, which also answers the broker's checks; senders of messages for a set time, with delay
levels, and of transactions whose message waits after its commit; and a consumer that sends every message back.

The first letter of a body names its kind: t (set time), r (set time, stored again on its way), l (delay level),
x (transaction), d (transaction whose message waits after its commit), f (fails always).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gantry.model import sysflag
from gantry.model.group import SubscriptionGroup
from gantry.model.message import StoredMessage, encode_properties
from gantry.model.record import decode_record, iter_records
from gantry.remoting.aio import Channel, Handler
from gantry.remoting.bodies import HeartbeatData, encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RequestFailedError
from gantry.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from gantry.remoting.headers.timer import RecallMessageHeader
from gantry.runtime.rng import Rng
from tests.fault.waitinghistory import (
    DEAD,
    FAILING,
    RETRIES_MAX,
    RETRY,
    TOPIC,
    Delivered,
    WaitingHistory,
    is_failing,
    open_ends,
)
from tests.support.brokerprocess import Peer
from tests.support.brokerunit import pull_header, send_header
from tests.support.transactionpeer import now_ms

COMMIT, ROLLBACK, UNKNOWN = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, sysflag.TRANSACTION_NONE
LEVELS = "1s 2s 1s 1s 3s"
"""The levels that the load expects of the broker. The third one and those after it are those of retries."""
LEVELS_MS = (1_000, 2_000, 1_000, 1_000, 3_000)
ROLL_WINDOW_S = 6
SENDERS = 3
PAUSE_MS_MAX = 60
RECALL_AHEAD_MS = 2_500
POLL_S = 0.05
READ_MAX = 32


class Link(Protocol):
    """A connection to the broker."""

    async def ask(
        self, code: int, header: Any = None, *, body: bytes | None = None, ext: dict[str, str] | None = None
    ) -> RemotingCommand:
        """Send a request and return its answer. Raises RequestFailedError."""
        ...

    def now_ms(self) -> int:
        """Return the broker's time."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class ProcessLink(Peer):
    """A connection to a broker process."""

    def now_ms(self) -> int:
        """Return the machine's time."""
        return now_ms()

    async def close(self) -> None:
        """End the connection."""
        await self.client.close()


MakeLink = Callable[[Mapping[int, Handler]], Link]


class WaitingLoad:
    """The load on one broker, for one life of it.

    Args:
        make_link: Makes a connection from handlers for the broker's requests.
        history: The history of the store.
        rng: The choices.
        life: A number that no earlier life of the store has.
        has_rolls: Some messages for a set time are stored again on their way.
        pause_ms: Longest pause of a sender between two messages.
    """

    def __init__(
        self,
        make_link: MakeLink,
        history: WaitingHistory,
        rng: Rng,
        *,
        life: int = 0,
        has_rolls: bool = False,
        pause_ms: int = PAUSE_MS_MAX,
    ) -> None:
        self.link = make_link({RequestCode.CHECK_TRANSACTION_STATE: self._checked})
        self._checks: set[bytes] = set()
        self._decided = {body: history.is_committed(body) for body in history.decided if body.startswith(b"x")}
        self._history = history
        self._pause_ms = pause_ms
        self._rng = rng
        self._life = life
        self._has_rolls = has_rolls
        self._count = 0
        self._must_decide = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create topics and group, and start the load."""
        await self._prepare()
        workers = [self._send(self._timed), self._send(self._leveled), self._send(self._failing), self._consume()]
        workers += [self._send(self._transact) for _ in range(SENDERS)]
        self._tasks = [asyncio.ensure_future(worker) for worker in workers]

    async def stop(self) -> None:
        """Stop the load, and close its connection. Requests without an answer are given up. Raises an error of the load."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def assert_decisions_hold(self) -> None:
        """Assert that the decisions that an earlier life of the broker has answered were carried out."""
        there = {message.body for message in await self.delivered()} if self._decided else set()
        wrong = {body for body, is_committed in self._decided.items() if is_committed != (body in there)}
        assert not wrong, f"a decision was answered, and is not carried out: {wrong}"

    async def settle(self, *, timeout_s: float, quiet_s: float) -> list[Delivered]:
        """Decide all open transactions and consume on, until nothing waits. Return everything that can be read.

        Args:
            timeout_s: Time after which the wait ends; then something is missing.
            quiet_s: Time to wait for what must not come.
        """
        self._must_decide = True
        await self._prepare()
        self._tasks = [asyncio.ensure_future(self._consume())]
        deadline_ms = self.link.now_ms() + round(1000 * timeout_s)
        delivered = await self.delivered()
        while open_ends(self._history, delivered) and self.link.now_ms() < deadline_ms:
            await asyncio.sleep(0.5)
            delivered = await self.delivered()
        await asyncio.sleep(quiet_s)
        delivered = await self.delivered()
        await self.stop()
        again = {body for body in self._checks if self._decided.get(body) is False}
        assert not again, f"the rollback was answered, and the broker asks: {again}"
        return delivered

    async def delivered(self) -> list[Delivered]:
        """Return everything that can be read."""
        found = []
        for topic in (TOPIC, FAILING, RETRY, DEAD):
            offset = 0
            while messages := await self._read(topic, offset):
                found += [
                    Delivered(topic, message.body, message.reconsume_times, message.stored_at_ms)
                    for message in messages
                ]
                offset = messages[-1].queue_offset + 1  # A queue may lack records that a power cut took.
        return found

    async def _prepare(self) -> None:
        for topic in (TOPIC, FAILING):
            ext = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "order": "false",
            }  # fmt: skip
            _succeeded(await self.link.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))
        group = SubscriptionGroup("g", retry_max_times=RETRIES_MAX)
        body = encode_subscription_group(group)
        _succeeded(await self.link.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
        beat = HeartbeatData("load@1", ("pg",), ()).encode()
        _succeeded(await self.link.ask(RequestCode.HEART_BEAT, body=beat))

    async def _send(self, one: Callable[[], Any]) -> None:
        """Send one message after the other, until the broker is gone."""
        while not self._stopping:
            try:
                await one()
            except RequestFailedError:
                return
            await asyncio.sleep(self._rng.below(self._pause_ms) / 1000)

    def _body(self, kind: str) -> bytes:
        self._count += 1
        return b"%s%d-%d" % (kind.encode(), self._life, self._count)

    async def _store(self, topic: str, body: bytes, **properties: str) -> RemotingCommand:
        text = encode_properties({"UNIQ_KEY": body.decode(), **properties}).decode()
        header = send_header(topic, properties=text, born_timestamp=self.link.now_ms())
        return _succeeded(await self.link.ask(RequestCode.SEND_MESSAGE_V2, header, body=body))

    async def _timed(self) -> None:
        rolls = self._has_rolls and self._rng.chance(0.3)
        delay_ms = self._rng.choice((0, 300, 1_200, 2_000, 2_800)) + self._rng.below(900)
        delay_ms += 2 * ROLL_WINDOW_S * 1000 if rolls else 0
        body, due_ms = self._body("r" if rolls else "t"), self.link.now_ms() + delay_ms
        self._history.due_ms[body] = due_ms
        answer = await self._store(TOPIC, body, TIMER_DELIVER_MS=str(due_ms))
        self._history.acknowledged.add(body)
        if "recallHandle" in answer.ext_fields and self._rng.chance(0.3) and delay_ms > RECALL_AHEAD_MS:
            await asyncio.sleep(self._rng.below(300) / 1000)
            self._history.doubtful.add(body)
            header = RecallMessageHeader(topic=TOPIC, recall_handle=answer.ext_fields["recallHandle"])
            _succeeded(await self.link.ask(RequestCode.RECALL_MESSAGE, header))
            if due_ms - self.link.now_ms() > RECALL_AHEAD_MS // 2:
                self._history.recalled.add(body)

    async def _leveled(self) -> None:
        level, body = 1 + self._rng.below(2), self._body("l")
        self._history.due_ms[body] = self.link.now_ms() + LEVELS_MS[level - 1]
        await self._store(TOPIC, body, DELAY=str(level))
        self._history.acknowledged.add(body)

    async def _failing(self) -> None:
        body = self._body("f")
        self._history.due_ms[body] = self.link.now_ms()
        await self._store(FAILING, body)
        self._history.acknowledged.add(body)

    async def _transact(self) -> None:
        history, rng = self._history, self._rng
        waits = rng.chance(0.2)
        body, now_ms = self._body("d" if waits else "x"), self.link.now_ms()
        # Only a message with a level waits for its time from its commit on.
        properties = {"DELAY": "1"} if waits else {}
        history.due_ms[body] = now_ms + (LEVELS_MS[0] if waits else 0)
        text = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": body.decode(), **properties}).decode()
        header = send_header(TOPIC, properties=text, born_timestamp=now_ms, sys_flag=sysflag.TRANSACTION_PREPARED)
        half = _succeeded(await self.link.ask(RequestCode.SEND_MESSAGE_V2, header, body=body))
        history.begun.add(body)
        await asyncio.sleep(rng.below(200) / 1000)
        way = rng.below(4)
        if way == 3:
            return  # The broker must ask.
        decision = history.decisions.setdefault(body, ROLLBACK if way == 2 else COMMIT)
        end = _end(
            decision, int(half.ext_fields["queueOffset"]), int(half.ext_fields["msgId"][-16:], 16), body.decode()
        )
        for _ in range(1 + rng.below(2)):  # Some producers decide twice.
            answer = await self.link.ask(RequestCode.END_TRANSACTION, end)
            if answer.code != ResponseCode.SYSTEM_BUSY:  # The answer to a check is carried out at this moment.
                _succeeded(answer)
                history.decided.add(body)

    def _checked(self, channel: Channel, request: RemotingCommand) -> None:
        header, half = CheckTransactionStateHeader.from_ext(request.ext_fields), decode_record(request.body_bytes)
        self._checks.add(half.body)
        decision = self._history.decisions.get(half.body)
        if decision is None:
            decision = (COMMIT, ROLLBACK, UNKNOWN)[self._rng.below(2 if self._must_decide else 3)]
            if decision != UNKNOWN:
                self._history.decisions[half.body] = decision
        end = _end(decision, header.tran_state_table_offset, header.commit_log_offset, half.message_id, from_check=True)
        channel.send_one_way(RemotingCommand.request(RequestCode.END_TRANSACTION, end, one_way=True))

    async def _consume(self) -> None:
        """Read all that fails, and send it back."""
        offsets = dict.fromkeys((FAILING, RETRY), 0)
        while not self._stopping:
            try:
                for topic in offsets:
                    for message in await self._read(topic, offsets[topic]):
                        if is_failing(message.body):
                            await self._send_back(message)
                        offsets[topic] = message.queue_offset + 1
            except RequestFailedError:
                return
            await asyncio.sleep(POLL_S)

    async def _send_back(self, message: StoredMessage) -> None:
        history, key = self._history, (message.body, message.reconsume_times)
        if key in history.sent_back:
            return
        history.attempts[key] += 1
        # Also the third level and those after it, which the broker chooses for a retry, take one second at least.
        history.back_due_ms.setdefault(key, self.link.now_ms() + LEVELS_MS[0])
        ext = {
            "offset": str(message.physical_offset), "group": "g", "originTopic": FAILING, "unitMode": "false",
            "originMsgId": message.message_id, "delayLevel": str(self._rng.choice((0, 0, 1, 2))),
        }  # fmt: skip
        _succeeded(await self.link.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext))
        history.sent_back.add(key)

    async def _read(self, topic: str, offset: int) -> list[StoredMessage]:
        header = pull_header(topic, offset, consumer_group="TOOLS_CONSUMER", max_msg_nums=READ_MAX, sys_flag=4)
        answer = await self.link.ask(RequestCode.PULL_MESSAGE, header)
        return list(iter_records(answer.body_bytes)) if answer.code == ResponseCode.SUCCESS else []


def _succeeded(answer: RemotingCommand) -> RemotingCommand:
    assert answer.code == ResponseCode.SUCCESS, f"{answer.code}: {answer.remark}"
    return answer


def _end(
    decision: int, queue_offset: int, physical_offset: int, message_id: str, *, from_check: bool = False
) -> EndTransactionHeader:
    return EndTransactionHeader(
        producer_group="pg",
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=decision,
        msg_id=message_id,
        from_transaction_check=from_check,
    )
