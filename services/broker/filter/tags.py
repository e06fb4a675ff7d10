"""Tag filters: a unit of a ConsumeQueue carries the hash of its message's tag, and a subscription a set of hashes.

A hash that collides lets a message through; clients compare the tags' text again (reference behaviour), so the
broker never looks into the record.
"""

from collections.abc import Callable

from gantry.model.group import SubscriptionData

# Says of a unit's tags code whether the subscription wants its message.
UnitFilter = Callable[[int], bool]

ALL_TAGS = "*"


def unit_filter(subscription: SubscriptionData) -> UnitFilter | None:
    """Return the filter of a tag subscription, or None where it wants everything.

    The ConsumeQueue keeps the hash sign-extended to 64 bits and a subscription its signed 32 bits: the same integer.
    """
    if subscription.sub_string in {"", ALL_TAGS} or not subscription.code_set:
        return None
    return frozenset(subscription.code_set).__contains__
