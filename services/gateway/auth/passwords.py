"""Passwords: argon2id hashes, computed in threads.

A hash takes about 30 ms of a core and 19 MiB of memory, so at most `HASHES_AT_ONCE` are computed at the same time and a
limited number of callers wait.

Source: RFC 9106; parameters of the OWASP Password Storage Cheat Sheet.
"""

import asyncio
from base64 import b32encode
from collections.abc import Callable
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from gantry.runtime.rng import secret_bytes
from services.gateway.errors import OVERLOADED, ProblemError

T = TypeVar("T")

HASHES_AT_ONCE: Final = 2
CALLERS_MAX: Final = 64
_PASSWORD_BYTES: Final = 15
_hasher: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class Passwords:
    """Hashes and checks passwords.

    Concurrency: the event loop's thread; hashes are computed in other threads.
    """

    def __init__(self) -> None:
        self._running = asyncio.Semaphore(HASHES_AT_ONCE)
        self._callers = 0
        self._unknown: str | None = None

    async def hash(self, password: str) -> str:
        """Return the hash of a password, with its parameters and salt. Raises ProblemError (503): too many callers."""
        return await self._run(_hasher.hash, password)

    async def is_right(self, password: str, hashed: str | None) -> bool:
        """Return whether the password has this hash. Raises ProblemError (503): too many callers.

        Args:
            password: The password.
            hashed: The hash; None for an unknown user. The answer then takes as long as with a wrong password.
        """
        if hashed is None:
            if self._unknown is None:
                self._unknown = await self.hash(make_password())
            await self._run(_verify, self._unknown, password)
            return False
        return await self._run(_verify, hashed, password)

    async def _run(self, work: Callable[..., T], *arguments: str) -> T:
        if self._callers >= CALLERS_MAX:
            raise ProblemError(OVERLOADED, f"log-ins: {self._callers} wait already", retry_after_ms=1_000)
        self._callers += 1
        try:
            async with self._running:
                return await asyncio.to_thread(work, *arguments)
        finally:
            self._callers -= 1


def needs_rehash(hashed: str) -> bool:
    """Return whether a hash has other parameters than new ones have."""
    return _hasher.check_needs_rehash(hashed)


def make_password() -> str:
    """Return a new password of 120 random bits."""
    return b32encode(secret_bytes(_PASSWORD_BYTES)).decode().lower()


def _verify(hashed: str, password: str) -> bool:
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
