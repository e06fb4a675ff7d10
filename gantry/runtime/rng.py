"""Randomness: one generator per process. Tests set its seed, so that a failure can be repeated."""

import random
import secrets
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

T = TypeVar("T")


class Rng:
    """A pseudo-random generator. Never use it for keys or tickets; use `secret_bytes` for them."""

    __slots__ = ("_random", "seed")

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(64) if seed is None else seed
        self._random = random.Random(self.seed)  # noqa: S311 - choices and jitter, not secrets.

    def below(self, bound: int) -> int:
        """Return a random integer in [0, bound)."""
        return self._random.randrange(bound)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._random.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        """Return a random item."""
        return self._random.choice(items)

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Shuffle the items in place."""
        self._random.shuffle(items)

    def jitter_ms(self, base_ms: int, ratio: float = 0.2) -> int:
        """Return `base_ms` plus or minus a random part of at most `ratio`. The result is never below 0."""
        return max(0, int(base_ms * (1 + ratio * (2 * self._random.random() - 1))))

    def bytes(self, count: int) -> bytes:
        """Return `count` pseudo-random bytes."""
        return self._random.randbytes(count)


def secret_bytes(count: int) -> bytes:
    """Return random bytes that are safe for keys and tickets."""
    return secrets.token_bytes(count)
