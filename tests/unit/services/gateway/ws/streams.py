"""A session for tests: frames as dicts, checked against their schemas."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from gantry.model.message import MessageQueue
from services.gateway.errors import FORBIDDEN, ProblemError
from services.gateway.views.messageparts import MessageWriter, PropertyCache
from services.gateway.ws.delivery import SharedBytes
from services.gateway.ws.effects import Effect, Join, OpenTail, Send
from services.gateway.ws.feed import Feed, PullOrder
from services.gateway.ws.frames import JsonCodec
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.session import Session
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription

SCHEMAS = Path(__file__).resolve().parents[5] / "openapi" / "websocket-schemas"
BASE = "https://gantry.dev/schemas/websocket/"


def _validators() -> Mapping[str, Any]:
    documents = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = jsonschema_rs.Registry([(document["$id"], document) for document in documents.values()])
    return {name: jsonschema_rs.validator_for(document, registry=registry) for name, document in documents.items()}


VALIDATORS = _validators()


def check_frame(frame: Mapping[str, Any]) -> None:
    """Raise an error unless the frame matches its schema."""
    VALIDATORS[frame["type"]].validate(frame)


class SomeRights:
    """May publish to and consume every topic that does not start with `secret`."""

    def require_publish(self, topic: str) -> None:
        self._require(topic)

    def require_producer(self) -> None:
        pass

    def require_consume(self, topic: str, group: str) -> None:
        self._require(topic)
        self._require(group)

    def require_read(self, topic: str) -> None:
        self._require(topic)

    def _require(self, name: str) -> None:
        if name.startswith("secret"):
            raise ProblemError(FORBIDDEN, f"no right on {name}")


class Stream:
    """A session and its effects."""

    def __init__(self, *, nonce: str = "n-", **limits: int) -> None:
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.session = Session(
            "session-1",
            "127.0.0.1@session-1",
            nonce=nonce,
            codec=JsonCodec(),
            writer=MessageWriter(binary=False),
            cache=PropertyCache(),
            rights=SomeRights(),
            limits=StreamLimits(**limits),
            wall_ms=lambda: 1_700_000_000_000,
            shared=SharedBytes(),
        )

    def take(self, effects: Iterable[Effect]) -> list[dict[str, Any]]:
        """Store the effects, and return the frames among them."""
        frames = []
        while effects:
            for effect in effects:
                if isinstance(effect, Send):
                    frames.append(msgspec.json.decode(effect.data))
                    check_frame(frames[-1])
                else:
                    self.effects.append(effect)
            effects = self.session.more()
        return frames

    def say(self, **frame: Any) -> list[dict[str, Any]]:
        """Send a frame; return the answers."""
        frame = {name.rstrip("_"): value for name, value in frame.items()}
        return self.take(self.session.receive(msgspec.json.encode(frame), is_text=True, now_ms=self.now_ms))

    def subscribe(
        self, queues: Mapping[MessageQueue, int] | None = None, *, topic: str = "T", **fields: Any
    ) -> Subscription:
        """Subscribe and get queues assigned."""
        assert self.say(type="subscribe", group="G", topic=topic, **fields) == []
        join = self.effects.pop()
        assert isinstance(join, Join)
        self.take(self.session.joined(join.subscription, join.frame_id))
        self.take(self.session.assigned(join.subscription, (queues or {}).items(), ()))
        self.effects.clear()
        return join.subscription

    def tail(self, queues: Mapping[MessageQueue, int] | None = None, **fields: Any) -> TailSubscription:
        """Subscribe to the tail of a topic and get its queues."""
        assert self.say(type="subscribe", mode="tail", topic="T", **fields) == []
        opened = self.effects.pop()
        assert isinstance(opened, OpenTail)
        self.take(self.session.joined(opened.subscription, opened.frame_id))
        for each in queues or {}:
            opened.subscription.follow_live(each)
        self.take(self.session.assigned(opened.subscription, (queues or {}).items(), ()))
        self.effects.clear()
        return opened.subscription

    def order(self, subscription: Subscription, feed: Feed) -> PullOrder:
        """Return the feed's next pull."""
        order = self.session.next_pull(subscription, feed)
        assert order is not None, "the feed requests no pull"
        return order

    def pull(
        self, subscription: Subscription, feed: Feed, data: bytes, next_offset: int, *, is_behind: bool = False
    ) -> list[dict[str, Any]]:
        """Answer the feed's next pull."""
        return self.answer(subscription, feed, self.order(subscription, feed), data, next_offset, is_behind=is_behind)

    def answer(
        self,
        subscription: Subscription,
        feed: Feed,
        order: PullOrder,
        data: bytes,
        next_offset: int,
        *,
        is_behind: bool = False,
    ) -> list[dict[str, Any]]:
        """Answer a pull."""
        frames = self.take(self.session.delivery.ended(feed, has_failed=False))
        took = self.session.pulled(
            subscription, feed, order, data, next_offset, is_behind=is_behind, now_ms=self.now_ms
        )
        return frames + self.take(took)


def queue(number: int = 0, topic: str = "T") -> MessageQueue:
    """Return a queue."""
    return MessageQueue(topic, "broker-a", number)
