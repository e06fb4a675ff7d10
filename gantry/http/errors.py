"""Errors of the HTTP and WebSocket client.

GantryError
├── GantryProblem            the gateway refused or could not serve; carries its problem (RFC 9457)
├── GantryConnectionError    no complete answer came; `outcome` says what that means for a send
├── GantryProtocolError      the answer does not follow the contract
├── StreamClosedError        the stream is closed and does not reconnect; carries the close code and the reason
└── NoStackError             there is no running stack in a folder
"""

from typing import Final

import msgspec

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec's decoders: for invalid data, for text that is not UTF-8, and for data nested too deeply."""

NOT_STORED: Final = "not_stored"
UNKNOWN: Final = "unknown"


class Problem(msgspec.Struct, frozen=True):
    """The gateway's description of an error."""

    type: str
    title: str
    status: int
    detail: str = ""
    field: str | None = None
    retryable: bool = False
    request_id: str | None = None
    outcome: str | None = None
    message_id: str | None = None

    @property
    def name(self) -> str:
        """Last part of the type; programs decide by this name."""
        return self.type.rpartition("/")[2]


class GantryError(Exception):
    """Base class of this client's errors."""


class GantryProblem(GantryError):  # noqa: N818 - the name says what it contains.
    """The gateway refused the request or could not serve it.

    Attributes:
        problem: The problem in the gateway's answer.
        retry_after_ms: Time after which the gateway asks for a retry, or None.
    """

    def __init__(self, problem: Problem, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{problem.status} {problem.name}: {problem.detail or problem.title}")
        self.problem = problem
        self.retry_after_ms = retry_after_ms

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.problem.status

    @property
    def name(self) -> str:
        """Name of the problem, such as `unknown-topic`."""
        return self.problem.name

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.problem.retryable

    @property
    def outcome(self) -> str | None:
        """Outcome of a send, `not_stored` or `unknown`; None for other calls."""
        return self.problem.outcome


class GantryConnectionError(GantryError):
    """No complete answer came.

    Attributes:
        outcome: Outcome of a send: `not_stored` if the request certainly never left, else `unknown`.
    """

    def __init__(self, detail: str, *, outcome: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class GantryProtocolError(GantryError):
    """The answer does not follow the contract: it comes from another service, or from another version."""


class StreamClosedError(GantryError):
    """The stream is closed.

    Attributes:
        code: The WebSocket close code; 1006 if the connection ended without a close frame.
        reason: Reason in the goodbye or close frame.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the stream is closed ({code}): {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


class NoStackError(GantryError):
    """There is no running stack in a folder; the message says what to do."""
