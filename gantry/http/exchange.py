"""The parts that both clients share when they run a call over httpx: its request, and the errors of the connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from gantry.http.call import Call
from gantry.http.errors import NOT_STORED, UNKNOWN, GantryConnectionError


def request_of(call: Call[Any], timeout_s: float) -> dict[str, Any]:
    """Return the arguments of httpx's `request` and `stream` for a call."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params or None,
        "content": call.content,
        "headers": call.headers,
        "timeout": timeout_s + call.wait_ms / 1_000,
    }


@contextmanager
def explained(call: Call[Any], base_url: str) -> Iterator[None]:
    """Turn httpx's errors within the block into GantryConnectionError."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise GantryConnectionError(f"{base_url} can't be reached: {error}", outcome=NOT_STORED) from error
    except httpx.TransportError as error:
        detail = f"{call.method} {call.path}: no whole answer: {type(error).__name__} {error}".rstrip()
        raise GantryConnectionError(detail, outcome=UNKNOWN) from error
