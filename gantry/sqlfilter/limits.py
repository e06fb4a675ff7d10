"""The limits of an expression. RocketMQ has none: a long expression stops its broker's thread (ADR-0034)."""

from typing import Final

SQL_LENGTH_MAX: Final = 16_384
"""Largest number of characters of an expression."""
TOKENS_MAX: Final = 1_000
"""Largest number of words, literals and operators. So a parse ends within the 20 ms that the event loop may be held."""
DEPTH_MAX: Final = 64
"""Largest number of operators within each other; each one takes a frame of Python's stack for every message."""
CONTAINS_MAX: Final = 100
"""Largest number of CONTAINS. Each one takes up to 0.16 ms to search 32 KiB, which is the largest size of a property."""
