"""Errors of the HTTP and WebSocket client.

GantryError
├── GantryProblem            the gateway refused or could not serve; carries its problem (RFC 9457)
├── GantryConnectionError    no whole answer came; `outcome` says what that means for a send
├── GantryProtocolError      the answer is not what the contract says
├── StreamClosedError        the stream is over and is not connected again; carries the close code and the reason
└── NoStackError             there is no running stack in a folder
"""

from typing import Final

import msgspec

NOT_STORED: Final = "not_stored"
UNKNOWN: Final = "unknown"


class Problem(msgspec.Struct, frozen=True):
    """What the gateway says about something that went wrong."""

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
        """Return the last part of the type, which is what programs branch on."""
        return self.type.rpartition("/")[2]


class GantryError(Exception):
    """Root of the family."""


class GantryProblem(GantryError):  # noqa: N818 - named as what it carries.
    """The gateway refused, or could not serve.

    Attributes:
        problem: What it said.
        retry_after_ms: When it asked to be tried again, or None.
    """

    def __init__(self, problem: Problem, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{problem.status} {problem.name}: {problem.detail or problem.title}")
        self.problem = problem
        self.retry_after_ms = retry_after_ms

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return self.problem.status

    @property
    def name(self) -> str:
        """Return the problem's name, such as `unknown-topic`."""
        return self.problem.name

    @property
    def retryable(self) -> bool:
        """Say whether the same may succeed later."""
        return self.problem.retryable

    @property
    def outcome(self) -> str | None:
        """Return what became of a send: `not_stored` or `unknown`; None for other calls."""
        return self.problem.outcome


class GantryConnectionError(GantryError):
    """No whole answer came.

    Attributes:
        outcome: Of a send: `not_stored` where the request certainly never left, else `unknown`.
    """

    def __init__(self, detail: str, *, outcome: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class GantryProtocolError(GantryError):
    """The answer is not what the contract says: another service, or another version."""


class StreamClosedError(GantryError):
    """The stream is over.

    Attributes:
        code: The WebSocket close code; 1006 where there was no close.
        reason: What the goodbye or the close said.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the stream is closed ({code}): {reason or 'no reason given'}")
        self.code = code
        self.reason = reason


class NoStackError(GantryError):
    """There is no running stack in a folder; the message says what to do."""
