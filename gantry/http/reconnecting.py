"""Decides whether and when a stream connects again after its connection ended (pure).

Before the gateway closes a connection, it sends a goodbye frame, if it can. The frame says whether and when to connect
again. Without a goodbye, the close code decides. openapi/websocket.md describes all close codes.
"""

from typing import Final

from gantry.http.streamframes import Goodbye
from gantry.runtime.rng import Rng

RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 10_000
STEADY_S: Final = 10.0
"""A connection that lasted longer than this has worked. After it ends, the first wait is RETRY_FIRST_MS again."""

# After these codes, a new connection would end in the same way: normal close, protocol error, wrong ticket or key,
# right withdrawn, connection replaced, limit exceeded.
_FINAL_CODES: Final = frozenset({1000, 4400, 4401, 4403, 4409, 4429})


def is_final(code: int, goodbye: Goodbye | None) -> bool:
    """Return whether the stream must not connect again after a close with this code."""
    return code in _FINAL_CODES if goodbye is None else not goodbye.retry


def delay_s(attempt: int, goodbye: Goodbye | None, rng: Rng) -> float:
    """Return the wait in seconds before an attempt (1 is the first).

    The wait is random. It doubles with each attempt, up to RETRY_MAX_MS. The wait that a goodbye asks for counts only
    before the first attempt.
    """
    after_ms = goodbye.after_ms if goodbye is not None and attempt == 1 else 0
    delay_ms = max(after_ms, min(RETRY_FIRST_MS * 2 ** (attempt - 1), RETRY_MAX_MS))
    return rng.jitter_ms(delay_ms, 0.3) / 1_000
