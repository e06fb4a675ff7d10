"""The work of a session that is due about once a second. Pure."""

from collections.abc import Callable, Iterable

from services.gateway.ws.answers import Answers
from services.gateway.ws.delivery import Delivery
from services.gateway.ws.effects import Effect, Wake
from services.gateway.ws.nacking import Returns
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.tail import TailSubscription


def tick(
    subscriptions: Iterable[Subscription],
    delivery: Delivery,
    returns: Returns,
    answers: Answers,
    *,
    overdue_before_ms: Callable[[Subscription], int],
    now_ms: int,
) -> list[Effect]:
    """Find messages of groups that are to be delivered again, and let tails go on.

    Args:
        subscriptions: The subscriptions of the session.
        delivery: The limits on sending.
        returns: The messages that are sent back.
        answers: The frames of the session.
        overdue_before_ms: Returns the monotonic time before which messages of a group were sent that are overdue.
        now_ms: Monotonic time.
    """
    effects: list[Effect] = []
    for subscription in subscriptions:
        if isinstance(subscription, TailSubscription):
            if not subscription.is_open:
                continue
            if subscription.tick(now_ms=now_ms, is_blocked=delivery.is_blocked):
                effects.append(answers.skipped(subscription))
            effects += [*delivery.deliver(subscription, now_ms=now_ms), Wake(subscription)]
            continue
        sent_until_ms = overdue_before_ms(subscription)
        if not subscription.is_orderly:
            effects += returns.overdue(subscription, sent_until_ms=sent_until_ms, now_ms=now_ms)
        elif subscription.mark_overdue(sent_until_ms=sent_until_ms, now_ms=now_ms):
            effects.append(Wake(subscription))
    return effects
