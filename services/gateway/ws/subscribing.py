"""The subscriptions that a client asks for: their checks, names and limits. Pure."""

from collections.abc import Callable

from msgspec import UNSET

from services.gateway.ws import frames
from services.gateway.ws.checks import check_supported, parse_names, parse_start, require_room
from services.gateway.ws.effects import Join, Rights
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.messagewriter import MessageWriter, PropertyCache
from services.gateway.ws.subscription import Subscription


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

    def subscribe(self, frame: frames.Subscribe) -> Join:
        """Add a subscription that is to join its group. Raises ProblemError."""
        limits = self._limits
        check_supported(frame)
        data = parse_names(frame, self._wall_ms())
        self._rights.require_consume(frame.topic, frame.group)
        require_room(frame, self._subscriptions.values(), limits)
        start, start_at_ms = parse_start("last" if frame.start is UNSET else frame.start)
        self._number += 1
        subscription = Subscription(
            f"s{self._number}",
            frame.group,
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
