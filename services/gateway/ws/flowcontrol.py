"""Frames with which a client controls the flow of a subscription. Pure."""

from services.gateway.ws import frames
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.subscription import Subscription


def control(
    subscription: Subscription, frame: frames.AddCredit | frames.Pause | frames.Resume, limits: StreamLimits
) -> str:
    """Carry out a frame; return the reason for the `state` that answers it."""
    if isinstance(frame, frames.AddCredit):
        subscription.add_credit(
            frame.messages, frame.bytes, messages_max=limits.credit_messages_max, bytes_max=limits.credit_bytes_max
        )
        return "credit"
    subscription.is_paused = isinstance(frame, frames.Pause)
    return "paused" if subscription.is_paused else "resumed"
