"""Filters by the properties of messages, and the limits of the reads that apply them."""

from typing import Final, Protocol


class PropertyFilter(Protocol):
    """A filter by the properties of messages.

    Attributes:
        cost: A number to which the time of a decision is proportional; the words of an SQL92 expression.
    """

    @property
    def cost(self) -> int: ...  # noqa: D102 - see above.

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these encoded properties matches."""
        ...


# The limits of one get with a property filter. An evaluation takes about 0.15 µs for each word, and more with long
# properties, so the loop is held for 2 to 6 ms. A get that must read from the disk needs a round for every
# MISSING_RECORDS_MAX records, and may have 128 rounds.
FILTER_WORK_MAX: Final = 20 << 20
"""Largest sum of cost * (FILTER_WORK_BYTES + bytes of the properties)."""
FILTER_WORK_BYTES: Final = 256
FILTER_TIME_MAX_MS: Final = 10
"""The time after which no further message is decided. Some expressions and values take ten times as long as the work
says, and a busy machine takes longer for everything."""
FILTER_BYTES_MAX: Final = 4 << 20
"""Largest sum of the sizes of the records that do not match."""
MISSING_RECORDS_MAX: Final = 64
