"""The subscriptions that a client asks for: their checks, names and limits. Pure."""

from collections.abc import Callable

from msgspec import UNSET

from services.gateway.views.messageparts import MessageWriter, PropertyCache
from services.gateway.ws import frames
from services.gateway.ws.checks import (
    check_group_mode,
    check_supported,
    check_tail_mode,
    parse_names,
    parse_start,
    require_room,
)
from services.gateway.ws.effects import Join, OpenTail, Rights
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription


class Subscribing:
    """Makes the subscriptions of one session."""

    def __init__(
        self,
        subscriptions: dict[str, Subscription],
        *,
        writer: MessageWriter,
        cache: PropertyCache,
        rights: Rights,
        limits: StreamLimits,
        wall_ms: Callable[[], int],
    ) -> None:
        """Make it; it adds to `subscriptions`."""
        self._subscriptions = subscriptions
        self._writer = writer
        self._cache = cache
        self._rights = rights
        self._limits = limits
        self._wall_ms = wall_ms
        self._number = 0

    def subscribe(self, frame: frames.Subscribe) -> Join | OpenTail:
        """Add a subscription that is to join its group, or to follow a topic. Raises ProblemError."""
        limits = self._limits
        check_supported(frame)
        if frame.mode == "tail":
            return self._open_tail(frame)
        group = check_group_mode(frame)
        data = parse_names(frame, self._wall_ms())
        self._rights.require_consume(frame.topic, group)
        require_room(frame, self._subscriptions.values(), limits)
        start, start_at_ms = parse_start("last" if frame.start is UNSET else frame.start)
        subscription = Subscription(
            self._next_name(),
            group,
            data,
            self._writer,
            self._cache,
            credit_messages=min(frame.credit.messages, limits.credit_messages_max),
            credit_bytes=min(frame.credit.bytes, limits.credit_bytes_max),
            batch=frame.batch,
            is_orderly=frame.order == "orderly",
            failures_max=frame.max_reconsume_times,
        )
        self._subscriptions[subscription.name] = subscription
        return Join(subscription, start, start_at_ms, may_make=frame.start is not UNSET, frame_id=frame.id)

    def _open_tail(self, frame: frames.Subscribe) -> OpenTail:
        limits = self._limits
        rate_per_s = check_tail_mode(frame, limits)
        data = parse_names(frame, self._wall_ms())
        self._rights.require_read(frame.topic)
        require_room(frame, self._subscriptions.values(), limits)
        start, start_at_ms = parse_start("last" if frame.start is UNSET else frame.start)
        tail = TailSubscription(
            self._next_name(),
            "",
            data,
            self._writer,
            self._cache,
            credit_messages=min(frame.credit.messages, limits.credit_messages_max),
            credit_bytes=min(frame.credit.bytes, limits.credit_bytes_max),
            batch=frame.batch,
            rate_per_s=rate_per_s,
        )
        self._subscriptions[tail.name] = tail
        return OpenTail(tail, start, start_at_ms, frame.id)

    def _next_name(self) -> str:
        self._number += 1
        return f"s{self._number}"
