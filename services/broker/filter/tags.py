"""Tag filters: a ConsumeQueue unit holds the hash of its message's tag, and a subscription holds a set of hashes.

A message with a colliding hash passes the filter. As in RocketMQ, clients compare the text of the tags again, so the
broker never reads the record.
"""

from collections.abc import Callable
from functools import lru_cache

from gantry.model.group import SubscriptionData
from gantry.storeformat.tagcodes import TagCodes

# Returns whether the subscription wants the message with this tags code.
UnitFilter = Callable[[int], bool]

ALL_TAGS = "*"
_FILTERS_CACHED_MAX = 1024


def unit_filter(subscription: SubscriptionData) -> UnitFilter | None:
    """Return the filter of a tag subscription, or None if it wants all messages.

    The ConsumeQueue stores the hash sign-extended to 64 bits, and a subscription has it as signed 32 bits. Both are the
    same integer.
    """
    if subscription.sub_string in {"", ALL_TAGS} or not subscription.code_set:
        return None
    return _filter_of(subscription.code_set)


@lru_cache(maxsize=_FILTERS_CACHED_MAX)
def _filter_of(codes: frozenset[int]) -> TagCodes:
    return TagCodes(codes)
