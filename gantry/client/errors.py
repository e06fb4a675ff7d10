"""Errors of the client, and what each answer of a broker means for a send.

ClientError
├── InvalidArgumentError   the caller's value can't be sent; nothing was
├── NotStartedError        the engine does not run
├── NoRouteError           no name server knows the topic
├── NotWritableError       no queue of the topic can be written just now
├── BrokerUnavailableError no master of a broker set is known just now
├── BrokerError            a broker (or name server) said no: code and remark
│   └── NotServedError         it does not know the request: another release, or another broker than ours
├── NoAnswerError          a request got no answer; `sent` says whether the peer may have seen it
│   ├── RequestTimeoutError    not in time
│   ├── ConnectionFailedError  no connection, or it broke
│   └── BackpressureError      too much is under way; not sent
└── SendError              a send did not succeed: its outcome over all attempts, and the last attempt's error

Theory of outcomes. `not_stored` is a promise: the message never appears unless it is sent again. So only what a broker
refuses before it stores counts as that; a code that no broker gives to a send, or gives after something broke on the
way, is `unknown`, and so is a request that may have been seen and was not answered.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from gantry.model.errors import shorten_value
from gantry.remoting.codes import ResponseCode
from gantry.remoting.errors import BackpressureError as RemotingBackpressureError
from gantry.remoting.errors import RequestFailedError
from gantry.remoting.errors import RequestTimeoutError as RemotingTimeoutError


class Outcome(enum.StrEnum):
    """What became of a message."""

    STORED = "stored"
    NOT_STORED = "not_stored"
    UNKNOWN = "unknown"


def combine_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome over all attempts: stored if any was, else unknown if any may have been."""
    seen = set(outcomes)
    if Outcome.STORED in seen:
        return Outcome.STORED
    return Outcome.UNKNOWN if Outcome.UNKNOWN in seen else Outcome.NOT_STORED


@dataclass(frozen=True, slots=True)
class Disposition:
    """What a code in answer to a send means."""

    outcome: Outcome
    retry: bool = False
    """Try again at once, on another broker where there is one."""
    refresh_route: bool = False
    """What we know of the topic's brokers is out of date."""
    is_transient: bool = False
    """It may pass by itself: the caller may send again later."""


_REFUSED = Disposition(Outcome.NOT_STORED)
_BUSY = Disposition(Outcome.NOT_STORED, retry=True, is_transient=True)
_MOVED = Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True, is_transient=True)
_LESS_SAFE = Disposition(Outcome.UNKNOWN, is_transient=True)
# Codes that no broker gives to a send. One that does anyway means something we can't know.
_OUT_OF_PLACE = Disposition(Outcome.UNKNOWN)

DISPOSITIONS: dict[ResponseCode, Disposition] = {
    ResponseCode.SUCCESS: Disposition(Outcome.STORED),
    # Anything that went wrong inside the broker, perhaps after the append.
    ResponseCode.SYSTEM_ERROR: Disposition(Outcome.UNKNOWN, retry=True, is_transient=True),
    # Flow control and fast failure: refused before it is looked at.
    ResponseCode.SYSTEM_BUSY: _BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: _REFUSED,
    ResponseCode.TRANSACTION_FAILED: _OUT_OF_PLACE,
    # Stored, but not yet as safely as was asked for.
    ResponseCode.FLUSH_DISK_TIMEOUT: _LESS_SAFE,
    ResponseCode.SLAVE_NOT_AVAILABLE: _LESS_SAFE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: _LESS_SAFE,
    ResponseCode.MESSAGE_ILLEGAL: _REFUSED,
    # A slave, a full disk, a store that is stopping, a master that has just been replaced.
    ResponseCode.SERVICE_NOT_AVAILABLE: _MOVED,
    ResponseCode.VERSION_NOT_SUPPORTED: _REFUSED,
    ResponseCode.NO_PERMISSION: Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True),
    ResponseCode.TOPIC_NOT_EXIST: Disposition(Outcome.NOT_STORED, retry=True, refresh_route=True),
    ResponseCode.TOPIC_EXIST_ALREADY: _OUT_OF_PLACE,
    ResponseCode.PULL_NOT_FOUND: _OUT_OF_PLACE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: _OUT_OF_PLACE,
    ResponseCode.PULL_OFFSET_MOVED: _OUT_OF_PLACE,
    ResponseCode.QUERY_NOT_FOUND: _OUT_OF_PLACE,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: _OUT_OF_PLACE,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: _OUT_OF_PLACE,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _OUT_OF_PLACE,
    # To a send into a retry topic.
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _REFUSED,
    ResponseCode.FILTER_DATA_NOT_EXIST: _OUT_OF_PLACE,
    ResponseCode.FILTER_DATA_NOT_LATEST: _OUT_OF_PLACE,
    # Mostly a queue that the topic no longer has: the queues' number was lowered since we asked.
    ResponseCode.INVALID_PARAMETER: Disposition(Outcome.NOT_STORED, refresh_route=True),
    ResponseCode.TRANSACTION_SHOULD_COMMIT: _OUT_OF_PLACE,
    ResponseCode.TRANSACTION_SHOULD_ROLLBACK: _OUT_OF_PLACE,
    ResponseCode.TRANSACTION_STATE_UNKNOWN: _OUT_OF_PLACE,
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: _OUT_OF_PLACE,
    ResponseCode.NO_BUYER_ID: Disposition(Outcome.NOT_STORED, retry=True),
    ResponseCode.NOT_IN_CURRENT_UNIT: Disposition(Outcome.NOT_STORED, retry=True),
    ResponseCode.CONSUMER_NOT_ONLINE: _OUT_OF_PLACE,
    ResponseCode.CONSUME_MSG_TIMEOUT: _OUT_OF_PLACE,
    ResponseCode.NO_MESSAGE: _OUT_OF_PLACE,
    ResponseCode.POLLING_FULL: _OUT_OF_PLACE,
    ResponseCode.POLLING_TIMEOUT: _OUT_OF_PLACE,
    ResponseCode.BROKER_NOT_EXIST: _MOVED,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: _OUT_OF_PLACE,
    ResponseCode.BROADCAST_CONSUMPTION: _OUT_OF_PLACE,
    ResponseCode.FLOW_CONTROL: _BUSY,
    ResponseCode.NOT_LEADER_FOR_QUEUE: _MOVED,
    ResponseCode.ILLEGAL_OPERATION: _OUT_OF_PLACE,
    # A broker that is going away takes no more.
    ResponseCode.GO_AWAY: _MOVED,
    ResponseCode.USER_NOT_EXIST: _REFUSED,
    ResponseCode.POLICY_NOT_EXIST: _REFUSED,
}


def disposition_of(code: int) -> Disposition:
    """Return what a code in answer to a send means; one that is not known here could mean anything."""
    return _BY_NUMBER.get(code, _OUT_OF_PLACE)


_BY_NUMBER: dict[int, Disposition] = {int(code): disposition for code, disposition in DISPOSITIONS.items()}


class ClientError(Exception):
    """Root of the family."""


class InvalidArgumentError(ClientError):
    """The caller's value can't be sent; nothing was. The caller is to be told field, value and reason."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}: {shorten_value(value)} {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class NotStartedError(ClientError):
    """The engine was not started, or is stopped."""


class NoRouteError(ClientError):
    """No name server knows where the topic is: it does not exist, or none of its brokers is alive."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic}: no name server knows a route to it")
        self.topic = topic


class NotWritableError(ClientError):
    """No queue of the topic can be written: its brokers have no master just now, or it is read-only."""

    def __init__(self, topic: str, *, is_transient: bool) -> None:
        why = "its brokers have no master just now" if is_transient else "it is read-only"
        super().__init__(f"topic {topic}: no queue can be written, {why}")
        self.topic = topic
        self.is_transient = is_transient


class BrokerUnavailableError(ClientError):
    """No master of the broker set is known just now."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(f"broker {broker_name}: no master of it is registered just now")
        self.broker_name = broker_name


class BrokerError(ClientError):
    """A broker (or a name server) said no."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name = ResponseCode(code).name if code in _BY_NUMBER else "unknown code"
        super().__init__(f"{address} answered {code} ({name}): {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address

    @property
    def disposition(self) -> Disposition:
        """Return what the code means in answer to a send."""
        return disposition_of(self.code)


class NotServedError(BrokerError):
    """A broker does not know one of our own requests (900000 to 900099); asking it again is of no use."""

    def __init__(self, request_code: int, address: str) -> None:
        super().__init__(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"it does not serve request {request_code}", address)
        self.request_code = request_code


class NoAnswerError(ClientError):
    """A request got no answer. With `sent` False the peer has certainly not seen it."""

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class RequestTimeoutError(NoAnswerError):
    """No answer came in time."""


class ConnectionFailedError(NoAnswerError):
    """There is no connection to the address, or it broke before the answer came."""


class BackpressureError(NoAnswerError):
    """Too much waits on this connection already, so nothing was sent; try again later."""


class SendError(ClientError):
    """A send did not succeed.

    Attributes:
        outcome: Over all attempts; never `stored`.
        retryable: Sending the same again may succeed, without anybody doing anything.
        cause: The last attempt's error.
    """

    def __init__(self, cause: ClientError, *, outcome: Outcome, retryable: bool) -> None:
        assert outcome is not Outcome.STORED, "a stored message is no error"
        super().__init__(f"{outcome.value}: {cause}")
        self.cause = cause
        self.outcome = outcome
        self.retryable = retryable


def no_answer(error: RequestFailedError) -> NoAnswerError:
    """Return the client's error for one of the wire's."""
    if isinstance(error, RemotingTimeoutError):
        return RequestTimeoutError(error.address, error.reason, sent=error.sent)
    if isinstance(error, RemotingBackpressureError):
        return BackpressureError(error.address, error.reason, sent=error.sent)
    return ConnectionFailedError(error.address, error.reason, sent=error.sent)


def send_error(cause: ClientError, outcomes: Iterable[Outcome] = ()) -> SendError:
    """Return the error of a whole send.

    Args:
        cause: The last attempt's error, or what kept the first one from being made.
        outcomes: Those of the attempts before the last.
    """
    last, is_transient = outcome_of(cause)
    return SendError(cause, outcome=combine_outcomes((*outcomes, last)), retryable=is_transient)


def outcome_of(error: ClientError) -> tuple[Outcome, bool]:
    """Return what an attempt that ended with the error did to the message, and whether the error may pass by itself."""
    if isinstance(error, BrokerError):
        return error.disposition.outcome, error.disposition.is_transient
    if isinstance(error, NoAnswerError):
        return (Outcome.UNKNOWN if error.sent else Outcome.NOT_STORED), True
    if isinstance(error, NotWritableError):
        return Outcome.NOT_STORED, error.is_transient
    return Outcome.NOT_STORED, isinstance(error, BrokerUnavailableError)
