"""Request ids: every answer carries one, and the log records of an error can be found by it."""

import re
from collections.abc import Iterable
from typing import Final

from gantry.runtime.rng import secret_bytes

_GIVEN_ID: Final = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """Creates request ids: a part that differs between processes, and a number.

    Concurrency: the event loop's thread.
    """

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        self._prefix = secret_bytes(6).hex()
        self._count = 0

    def next(self) -> str:
        """Return a new unique id."""
        self._count += 1
        return f"{self._prefix}-{self._count:x}"

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the caller's id if it is valid, or a new one."""
        for name, value in headers:
            if name.lower() == b"x-request-id":
                return read_given_id(value) or self.next()
        return self.next()


def read_given_id(value: bytes) -> str | None:
    """Return a caller's id as text, or None if it is not 1 to 128 visible ASCII characters."""
    return value.decode("ascii") if _GIVEN_ID.fullmatch(value) else None
