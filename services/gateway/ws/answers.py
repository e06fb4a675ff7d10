"""The frames that a session sends, except for the messages themselves. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from gantry.model.message import MessageQueue
from services.gateway.errors import CORRUPT_RECORD, RECEIPT_GONE, ProblemError, invalid
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.views.messages import message_view
from services.gateway.ws.effects import FrameId, Send
from services.gateway.ws.feed import Damage
from services.gateway.ws.frames import Codec
from services.gateway.ws.limits import PING_MS, StreamLimits
from services.gateway.ws.receipts import GONE
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription

# Characters of a client's text that an error repeats.
ECHOED_MAX = 80


class Answers:
    """Writes frames in the session's coding; `session` is the request id of its problems."""

    def __init__(self, session: str, codec: Codec) -> None:
        self._session = session
        self._codec = codec

    def welcome(self, client_id: str, limits: StreamLimits) -> Send:
        """Return the first frame."""
        return self._send(
            {
                "type": "welcome",
                "session": self._session,
                "client_id": client_id,
                "resume": None,
                "limits": limits.as_frame(),
                "ping_ms": PING_MS,
            }
        )

    def subscribed(self, subscription: Subscription, frame_id: FrameId, *, skipped: int) -> Send:
        """Return the frame that confirms a subscription; `skipped` counts the messages before the group's start."""
        frame: dict[str, Any] = {"type": "subscribed", "subscription": subscription.name}
        if skipped:
            frame["skipped"] = self._codec.offset(skipped)
        return self._send(frame, frame_id)

    def assigned(self, subscription: Subscription) -> Send:
        """Return the frame with all queues of the topic that the connection has now."""
        feeds = [feed for feed in subscription.feeds.values() if feed.queue.topic == subscription.topic]
        feeds.sort(key=lambda feed: feed.queue)
        queues = [
            {
                "broker": feed.queue.broker_name,
                "queue_id": feed.queue.queue_id,
                "next_offset": self._codec.offset(feed.window.position),
            }
            for feed in feeds
        ]
        return self._send({"type": "assigned", "subscription": subscription.name, "queues": queues})

    def poison(self, subscription: Subscription, queue: MessageQueue, offset: int, failures: int) -> Send:
        """Return the frame that names a message that holds up its queue."""
        place = {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "queue_offset": self._codec.offset(offset),
            "failures": failures,
        }
        return self.state(subscription, "poison", poison=place)

    def state(self, subscription: Subscription, reason: str, frame_id: FrameId = UNSET, **more: Any) -> Send:
        """Return the frame with the messages in flight and the remaining credit."""
        credit = {"messages": max(0, subscription.credit_messages), "bytes": max(0, subscription.credit_bytes)}
        frame = {
            "type": "state",
            "subscription": subscription.name,
            "in_flight": subscription.in_flight,
            "credit": credit,
            "reason": reason,
            **more,
        }
        return self._send(frame, frame_id)

    def skipped(self, tail: TailSubscription) -> Send:
        """Return the frame that says how many messages a tail has skipped."""
        return self.state(tail, "skipped", skipped=self._codec.offset(tail.skipped))

    def published(self, results: Sequence[object], counts: dict[str, int], frame_id: FrameId) -> Send:
        """Return the frame with the outcome of each message."""
        return self._send({"type": "published", "results": results, **counts}, frame_id)

    def check(self, check: TransactionCheck) -> Send:
        """Return the question about an open transaction."""
        frame = {
            "type": "check",
            "transaction": check.transaction,
            "group": check.group,
            "checks": check.checks,
            "message": message_view(check.message, binary=not self._codec.is_text),
        }
        return self._send(frame)

    def error(
        self,
        problem: ProblemError,
        *,
        frame_id: FrameId = UNSET,
        subscription: str | None = None,
        receipt: str | None = None,
    ) -> Send:
        """Return the frame of a rejection."""
        frame: dict[str, Any] = {"type": "error", "problem": problem.to_dict(self._session)}
        if subscription is not None:
            frame["subscription"] = subscription
        if receipt is not None:
            frame["receipt"] = receipt
        return self._send(frame, frame_id)

    def receipt_refused(self, subscription: Subscription, receipt: str, refusal: str, frame_id: FrameId) -> Send:
        """Return the error of one rejected receipt, with the reason."""
        echoed = receipt[:ECHOED_MAX]
        if refusal == GONE:
            detail = f"receipts: {echoed!r} is not in flight here: acked or returned already, of another session or subscription, or its queue has moved"
            problem = ProblemError(RECEIPT_GONE, detail, field="/receipts")
        else:
            problem = invalid("/receipts", echoed, "is not a receipt")
        return self.error(problem, frame_id=frame_id, subscription=subscription.name, receipt=echoed)

    def receipts_refused(self, subscription: Subscription, receipt: str, count: int, frame_id: FrameId) -> Send:
        """Return the error for `count` more rejected receipts of one ack; `receipt` is the last of them."""
        detail = f"receipts: {count} more of this ack are not in flight or not valid"
        problem = ProblemError(RECEIPT_GONE, detail, field="/receipts")
        return self.error(problem, frame_id=frame_id, subscription=subscription.name, receipt=receipt[:ECHOED_MAX])

    def damages(self, subscription: Subscription, damaged: Iterable[Damage]) -> list[Send]:
        """Return the errors for records that cannot be delivered."""
        return [
            self.error(ProblemError(CORRUPT_RECORD, _describe(damage)), subscription=subscription.name)
            for damage in damaged
        ]

    def goodbye(self, reason: str, *, retry: bool, after_ms: int) -> Send:
        """Return the frame that gives the reason why the connection is about to be closed."""
        return self._send({"type": "goodbye", "retry": retry, "after_ms": after_ms, "reason": reason})

    def _send(self, frame: dict[str, Any], frame_id: FrameId = UNSET) -> Send:
        if frame_id is not UNSET:
            frame["id"] = frame_id
        return Send(self._codec.encode(frame))


def _describe(damage: Damage) -> str:
    queue = damage.queue
    return f"{queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}, offset {damage.offset}: {damage.reason}"
