"""Errors of the client, and the meaning of each response code for a send.

ClientError
├── InvalidArgumentError   the caller's value is not valid; nothing was sent
├── NotStartedError        the engine does not run
├── NoRouteError           no name server knows the topic
├── NotWritableError       no queue of the topic can be written now
├── BrokerUnavailableError no master of a broker set is known now
├── OffsetsFileError       the file with the offsets of a broadcasting consumer can't be read or written
├── BrokerError            a broker (or name server) refused the request: code and remark
│   ├── DrainedError           the broker takes no messages at the moment, because an operator has drained it
│   ├── GroupDeletedError      the group was deleted while this client was a member of it
│   └── NotServedError         it does not know the request: another release, or a broker that is not Gantry's
├── NoAnswerError          a request got no answer; `sent` says whether the peer may have seen it
│   ├── RequestTimeoutError    no answer in time
│   ├── ConnectionFailedError  no connection, or the connection broke
│   └── BackpressureError      too much data or too many requests wait; not sent
└── SendError              a send did not succeed: outcome over all attempts, and error of the last attempt

Theory of outcomes. `not_stored` is a promise: the message never appears unless it is sent again. So an answer means
`not_stored` only if the broker gives it before it stores anything. The outcome is `unknown` for a code that no broker
gives to a send, and for a code that a broker gives after something failed on the way. The outcome is also `unknown` for
a request that the peer may have seen and did not answer.
"""

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gantry.model.errors import shorten_value
from gantry.remoting.codes import ResponseCode
from gantry.remoting.errors import BackpressureError as RemotingBackpressureError
from gantry.remoting.errors import RequestFailedError
from gantry.remoting.errors import RequestTimeoutError as RemotingTimeoutError


class Outcome(enum.StrEnum):
    """Outcome of a send for one message."""

    STORED = "stored"
    NOT_STORED = "not_stored"
    UNKNOWN = "unknown"


def combine_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome over all attempts.

    It is `stored` if any attempt stored the message, else `unknown` if any outcome is unknown.
    """
    seen = set(outcomes)
    if Outcome.STORED in seen:
        return Outcome.STORED
    return Outcome.UNKNOWN if Outcome.UNKNOWN in seen else Outcome.NOT_STORED


@dataclass(frozen=True, slots=True)
class Disposition:
    """The meaning of a response code for a send."""

    outcome: Outcome
    retry: bool = False
    """Whether to retry at once, on another broker if there is one."""
    refresh_route: bool = False
    """Whether the client's route of the topic is out of date."""
    is_transient: bool = False
    """Whether the cause may pass by itself, so that the caller may send again later."""


_REFUSED = Disposition(Outcome.NOT_STORED)
_BUSY = Disposition(Outcome.NOT_STORED, retry=True, is_transient=True)
_MOVED = Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True, is_transient=True)
_LESS_DURABLE = Disposition(Outcome.UNKNOWN, is_transient=True)
# Codes that no broker gives to a send. If a broker gives one anyway, its meaning for the message is unknown.
_UNEXPECTED_CODE = Disposition(Outcome.UNKNOWN)

DISPOSITIONS: dict[ResponseCode, Disposition] = {
    ResponseCode.SUCCESS: Disposition(Outcome.STORED),
    # The broker failed, perhaps after the append.
    ResponseCode.SYSTEM_ERROR: Disposition(Outcome.UNKNOWN, retry=True, is_transient=True),
    # Flow control and fast failure: the broker refuses the message before it looks at it.
    ResponseCode.SYSTEM_BUSY: _BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: _REFUSED,
    ResponseCode.TRANSACTION_FAILED: _UNEXPECTED_CODE,
    # The message is stored, but not yet flushed or replicated as the producer asked.
    ResponseCode.FLUSH_DISK_TIMEOUT: _LESS_DURABLE,
    ResponseCode.SLAVE_NOT_AVAILABLE: _LESS_DURABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: _LESS_DURABLE,
    ResponseCode.MESSAGE_ILLEGAL: _REFUSED,
    # The broker is a slave, its disk is full, its store is stopping, or another master has just replaced it.
    ResponseCode.SERVICE_NOT_AVAILABLE: _MOVED,
    ResponseCode.VERSION_NOT_SUPPORTED: _REFUSED,
    ResponseCode.NO_PERMISSION: Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True),
    ResponseCode.TOPIC_NOT_EXIST: Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True),
    ResponseCode.TOPIC_EXIST_ALREADY: _UNEXPECTED_CODE,
    ResponseCode.PULL_NOT_FOUND: _UNEXPECTED_CODE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: _UNEXPECTED_CODE,
    ResponseCode.PULL_OFFSET_MOVED: _UNEXPECTED_CODE,
    ResponseCode.QUERY_NOT_FOUND: _UNEXPECTED_CODE,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: _UNEXPECTED_CODE,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: _UNEXPECTED_CODE,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _UNEXPECTED_CODE,
    # The answer to a send into a retry topic.
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _REFUSED,
    ResponseCode.FILTER_DATA_NOT_EXIST: _UNEXPECTED_CODE,
    ResponseCode.FILTER_DATA_NOT_LATEST: _UNEXPECTED_CODE,
    # Usually, the topic no longer has the queue: its number of queues was lowered after the client loaded the route.
    ResponseCode.INVALID_PARAMETER: Disposition(Outcome.NOT_STORED, refresh_route=True),
    ResponseCode.TRANSACTION_SHOULD_COMMIT: _UNEXPECTED_CODE,
    ResponseCode.TRANSACTION_SHOULD_ROLLBACK: _UNEXPECTED_CODE,
    ResponseCode.TRANSACTION_STATE_UNKNOWN: _UNEXPECTED_CODE,
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: _UNEXPECTED_CODE,
    ResponseCode.NO_BUYER_ID: Disposition(Outcome.NOT_STORED, retry=True),
    ResponseCode.NOT_IN_CURRENT_UNIT: Disposition(Outcome.NOT_STORED, retry=True),
    ResponseCode.CONSUMER_NOT_ONLINE: _UNEXPECTED_CODE,
    ResponseCode.CONSUME_MSG_TIMEOUT: _UNEXPECTED_CODE,
    ResponseCode.NO_MESSAGE: _UNEXPECTED_CODE,
    ResponseCode.POLLING_FULL: _UNEXPECTED_CODE,
    ResponseCode.POLLING_TIMEOUT: _UNEXPECTED_CODE,
    ResponseCode.BROKER_NOT_EXIST: _MOVED,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: _UNEXPECTED_CODE,
    ResponseCode.BROADCAST_CONSUMPTION: _UNEXPECTED_CODE,
    ResponseCode.FLOW_CONTROL: _BUSY,
    ResponseCode.NOT_LEADER_FOR_QUEUE: _MOVED,
    ResponseCode.ILLEGAL_OPERATION: _UNEXPECTED_CODE,
    # The broker is shutting down and accepts no more messages.
    ResponseCode.GO_AWAY: _MOVED,
    ResponseCode.USER_NOT_EXIST: _REFUSED,
    ResponseCode.POLICY_NOT_EXIST: _REFUSED,
    ResponseCode.GANTRY_KEY_IN_USE: _REFUSED,
}


def disposition_of(code: int) -> Disposition:
    """Return the meaning of a response code for a send; an unknown code has the outcome `unknown`."""
    return _BY_NUMBER.get(code, _UNEXPECTED_CODE)


_BY_NUMBER: dict[int, Disposition] = {int(code): disposition for code, disposition in DISPOSITIONS.items()}


class ClientError(Exception):
    """Base class of the client's errors."""


class InvalidArgumentError(ClientError):
    """The caller's value is not valid, and nothing was sent. The error names the field, the value and the reason."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}: {shorten_value(value)} {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class NotStartedError(ClientError):
    """The engine is not started, or is stopped."""


class NoRouteError(ClientError):
    """No name server knows a route to the topic: it does not exist, or none of its brokers is alive."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic}: no name server knows a route to it")
        self.topic = topic


class NotWritableError(ClientError):
    """No queue of the topic can be written: its brokers have no master now, or the topic is read-only."""

    def __init__(self, topic: str, *, is_transient: bool) -> None:
        why = "its brokers have no master just now" if is_transient else "it is read-only"
        super().__init__(f"topic {topic}: no queue can be written, {why}")
        self.topic = topic
        self.is_transient = is_transient


class BrokerUnavailableError(ClientError):
    """No master of the broker set is known now."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(f"broker {broker_name}: no master of it is registered just now")
        self.broker_name = broker_name


class OffsetsFileError(ClientError):
    """The file with the offsets of a broadcasting consumer can't be read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


class BrokerError(ClientError):
    """A broker (or a name server) refused the request."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name = ResponseCode(code).name if code in _BY_NUMBER else "unknown code"
        super().__init__(f"{address} answered {code} ({name}): {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address

    @property
    def disposition(self) -> Disposition:
        """Meaning of the code for a send."""
        return disposition_of(self.code)


class DrainedError(BrokerError):
    """A broker takes no messages at the moment: it lacks the permission to be written. Other brokers may take them."""

    @property
    def disposition(self) -> Disposition:
        """Not stored. The same send may succeed on another broker, or here after the drain."""
        return _MOVED


class GroupDeletedError(BrokerError):
    """The group was deleted while this client was a member of it: the member ends."""


class NotServedError(BrokerError):
    """A broker does not know one of Gantry's own requests (900000 to 900099); asking it again does not help."""

    def __init__(self, request_code: int, address: str) -> None:
        super().__init__(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"it does not serve request {request_code}", address)
        self.request_code = request_code


class NoAnswerError(ClientError):
    """A request got no answer. If `sent` is False, the peer has certainly not seen the request."""

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class RequestTimeoutError(NoAnswerError):
    """No answer came in time."""


class ConnectionFailedError(NoAnswerError):
    """No connection to the address could be opened, or the connection broke before the answer came."""


class BackpressureError(NoAnswerError):
    """Too many requests or bytes wait on this connection, so nothing was sent; the caller may try again later."""


class SendError(ClientError):
    """A send did not succeed.

    Attributes:
        outcome: Outcome over all attempts; never `stored`.
        retryable: Whether the same send may succeed later, without a change by anybody.
        cause: Error of the last attempt.
    """

    def __init__(self, cause: ClientError, *, outcome: Outcome, retryable: bool) -> None:
        assert outcome is not Outcome.STORED, "a stored message is no error"
        super().__init__(f"{outcome.value}: {cause}")
        self.cause = cause
        self.outcome = outcome
        self.retryable = retryable


def refused_send(code: int, remark: str | None, address: str) -> BrokerError:
    """Return the error of a send that a broker has refused.

    Brokers refuse with NO_PERMISSION for several reasons. Only RocketMQ's remark tells that the broker is drained.
    """
    is_drained = code == ResponseCode.NO_PERMISSION and _DRAINED_REMARK.fullmatch(remark or "") is not None
    return (DrainedError if is_drained else BrokerError)(code, remark, address)


_DRAINED_REMARK = re.compile(r"the broker\[[^\]]*\]? ?sending message is forbidden")


def no_answer(error: RequestFailedError) -> NoAnswerError:
    """Return the client's error for an error of the transport."""
    if isinstance(error, RemotingTimeoutError):
        return RequestTimeoutError(error.address, error.reason, sent=error.sent)
    if isinstance(error, RemotingBackpressureError):
        return BackpressureError(error.address, error.reason, sent=error.sent)
    return ConnectionFailedError(error.address, error.reason, sent=error.sent)


def send_error(cause: ClientError, outcomes: Iterable[Outcome] = ()) -> SendError:
    """Return the error of a whole send.

    Args:
        cause: Error of the last attempt, or the error that prevented the first attempt.
        outcomes: Outcomes of the attempts before the last.
    """
    last, is_transient = outcome_of(cause)
    return SendError(cause, outcome=combine_outcomes((*outcomes, last)), retryable=is_transient)


def outcome_of(error: ClientError) -> tuple[Outcome, bool]:
    """Return the outcome of an attempt that ended with the error, and whether the error may pass by itself."""
    if isinstance(error, BrokerError):
        return error.disposition.outcome, error.disposition.is_transient
    if isinstance(error, NoAnswerError):
        return (Outcome.UNKNOWN if error.sent else Outcome.NOT_STORED), True
    if isinstance(error, NotWritableError):
        return Outcome.NOT_STORED, error.is_transient
    return Outcome.NOT_STORED, isinstance(error, BrokerUnavailableError)
