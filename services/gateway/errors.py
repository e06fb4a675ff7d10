"""Errors of the gateway, and the table of the problems that clients receive.

The gateway reports every error as a problem (RFC 9457): a `ProblemType` of the table below and a detail. Each type has
its page under docs/problems.

ProblemError   a request is rejected or can't be served; carries its problem

`problem_of` translates the errors of other packages. An error that it does not know is a bug: clients receive
`internal-error` without details, and the gateway counts and logs the error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gantry.client import errors as client
from gantry.model.errors import InvalidValueError, RecordError
from gantry.remoting.codes import ResponseCode
from gantry.remoting.errors import BodyError, HeaderError, RemoteProtocolError

PROBLEM_ROOT: Final = "https://gantry.dev/problems/"

STORED: Final = "stored"
NOT_STORED: Final = "not_stored"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A type of problem; clients may branch on it."""

    name: str
    status: int
    title: str
    retryable: bool = False

    @property
    def uri(self) -> str:
        """Return the stable `type`."""
        return PROBLEM_ROOT + self.name


PROBLEM_TYPES: dict[str, ProblemType] = {}


def _type(name: str, status: int, title: str, *, retryable: bool = False) -> ProblemType:
    assert name not in PROBLEM_TYPES
    PROBLEM_TYPES[name] = ProblemType(name, status, title, retryable)
    return PROBLEM_TYPES[name]


MALFORMED_BODY = _type("malformed-body", 400, "The body can't be read")
MALFORMED_PATH = _type("malformed-path", 400, "The path or query can't be read")
INVALID_FIELD = _type("invalid-field", 400, "A value can't be used")
UNKNOWN_FIELD = _type("unknown-field", 400, "There is no such field")
UNKNOWN_PARAMETER = _type("unknown-parameter", 400, "There is no such parameter")
DUPLICATE = _type("duplicate", 400, "A key, parameter or header is repeated")
UNAUTHENTICATED = _type("unauthenticated", 401, "No valid API key or session")
FORBIDDEN = _type("forbidden", 403, "The caller does not have the required right")
CSRF_TOKEN = _type("csrf-token", 403, "The CSRF token is missing or wrong")
RESERVED_NAME = _type("reserved-name", 403, "The name belongs to the system")
REFUSED_BY_BROKER = _type("refused-by-broker", 403, "The broker refused the request")
NOT_FOUND = _type("not-found", 404, "There is nothing at this path")
UNKNOWN_TOPIC = _type("unknown-topic", 404, "There is no such topic")
UNKNOWN_GROUP = _type("unknown-group", 404, "There is no such group")
UNKNOWN_QUEUE = _type("unknown-queue", 404, "There is no such queue")
UNKNOWN_BROKER = _type("unknown-broker", 404, "There is no such broker")
UNKNOWN_MESSAGE = _type("unknown-message", 404, "There is no such message")
UNKNOWN_KEY = _type("unknown-key", 404, "There is no such API key")
UNKNOWN_USER = _type("unknown-user", 404, "There is no such user")
UNKNOWN_SESSION = _type("unknown-session", 404, "There is no such session")
UNKNOWN_REPORT = _type("unknown-report", 404, "There is no such report")
UNKNOWN_RUN = _type("unknown-run", 404, "There is no such run")
UNKNOWN_OBJECTIVE = _type("unknown-objective", 404, "There is no such objective")
UNKNOWN_WEBHOOK = _type("unknown-webhook", 404, "There is no such webhook")
UNKNOWN_JOB = _type("unknown-job", 404, "There is no such job")
UNKNOWN_TRANSACTION = _type("unknown-transaction", 404, "There is no such transaction")
METHOD_NOT_ALLOWED = _type("method-not-allowed", 405, "The method is not allowed on this path")
SLOW_REQUEST = _type("slow-request", 408, "The request came too slowly", retryable=True)
LAST_ADMIN_KEY = _type("last-admin-key", 409, "The last key with the right admin can't be revoked")
LAST_ADMIN = _type("last-admin", 409, "The last user with the role admin must stay")
CONFLICT = _type("conflict", 409, "The request conflicts with the current state")
SETTINGS_CHANGED = _type("settings-changed", 409, "Settings do not have the expected values")
HIDES_MESSAGES = _type("hides-messages", 409, "The change would hide messages")
MEMBERS_CONNECTED = _type("members-connected", 409, "Members of the group are connected")
UNDO_REFUSED = _type("undo-refused", 409, "The reset of offsets can't be undone")
JOB_ENDED = _type("job-ended", 409, "The job has ended")
ALREADY_DECIDED = _type("already-decided", 409, "The transaction is decided already")
RECEIPT_GONE = _type("receipt-gone", 410, "The receipt is no longer valid")
VERSION_CONFLICT = _type("version-conflict", 412, "The resource has changed since it was read")
TOO_LARGE = _type("too-large", 413, "The request is too large")
UNSUPPORTED_MEDIA_TYPE = _type("unsupported-media-type", 415, "The content type is not supported")
WEBSOCKET_ONLY = _type("websocket-only", 426, "The path requires a WebSocket")
TOO_MANY = _type("too-many", 429, "A limit is reached", retryable=True)
HEADERS_TOO_LARGE = _type("headers-too-large", 431, "The request's head is too large")
INTERNAL = _type("internal-error", 500, "Internal error", retryable=True)
CORRUPT_RECORD = _type("corrupt-record", 500, "The record is damaged on the broker's disk")
NOT_IMPLEMENTED = _type("not-implemented", 501, "Not implemented yet")
BROKER_ERROR = _type("broker-error", 502, "The broker reports an error", retryable=True)
OVERLOADED = _type("overloaded", 503, "The gateway is overloaded", retryable=True)
BROKER_BUSY = _type("broker-busy", 503, "The broker is overloaded", retryable=True)
BROKER_UNAVAILABLE = _type("broker-unavailable", 503, "The broker can't be reached", retryable=True)
NAMESRV_UNAVAILABLE = _type("namesrv-unavailable", 503, "No name server answers", retryable=True)
METADATA_UNAVAILABLE = _type("metadata-unavailable", 503, "The metadata store is unavailable", retryable=True)
STOPPING = _type("stopping", 503, "The gateway is stopping", retryable=True)
BROKER_TIMEOUT = _type("broker-timeout", 504, "The broker did not answer in time", retryable=True)
OUTCOME_UNKNOWN = _type("outcome-unknown", 504, "The outcome is unknown", retryable=True)

RETRY_AFTER_MS_DEFAULT: Final = 1_000
_RETRY_AFTER_STATUSES: Final = frozenset({429, 503})


class ProblemError(Exception):
    """A request, or one item of it, is rejected or can't be served.

    Attributes:
        kind: Row of the table above.
        detail: One line for people that names field and value.
        field: JSON pointer into the body, or the name of a parameter or header.
        outcome: Outcome of a send; None for other requests.
        retryable: Whether the same request may succeed later; by default the value of `kind`.
        retry_after_ms: Time until a retry makes sense, if the status has a Retry-After header.
        headers: Additional headers of the answer, such as Allow.
        message_id: Message id of a send whose outcome is unknown; None for other requests.
        transaction_state: State of a transaction that is decided already; None for other requests.
        differences: Names, expected and actual values of settings that the caller does not know; empty for other requests.
    """

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        field: str | None = None,
        outcome: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        transaction_state: str | None = None,
        differences: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.field = field
        self.outcome = outcome
        self.retryable = kind.retryable if retryable is None else retryable
        if retry_after_ms is None and kind.status in _RETRY_AFTER_STATUSES:
            retry_after_ms = RETRY_AFTER_MS_DEFAULT
        self.retry_after_ms = retry_after_ms
        self.headers = dict(headers) if headers else {}
        self.message_id = message_id
        self.transaction_state = transaction_state
        self.differences = list(differences)

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return self.kind.status

    @property
    def retry_after_s(self) -> int | None:
        """Return the value of the Retry-After header: whole seconds, at least 1."""
        return None if self.retry_after_ms is None else max(1, -(-self.retry_after_ms // 1_000))

    def to_dict(self, request_id: str) -> dict[str, Any]:
        """Return the problem as a JSON object."""
        problem: dict[str, Any] = {
            "type": self.kind.uri,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "retryable": self.retryable,
            "request_id": request_id,
        }
        if self.field is not None:
            problem["field"] = self.field
        if self.outcome is not None:
            problem["outcome"] = self.outcome
        if self.message_id is not None:
            problem["message_id"] = self.message_id
        if self.transaction_state is not None:
            problem["state"] = self.transaction_state
        if self.differences:
            problem["differences"] = self.differences
        return problem


def invalid(field: str, value: object, reason: str, *, outcome: str | None = None) -> ProblemError:
    """Return the problem of a value that can't be used; it names the field and the shortened value."""
    return ProblemError(INVALID_FIELD, str(InvalidValueError(field, value, reason)), field=field, outcome=outcome)


def reserved_name(field: str, name: str, *, outcome: str | None = None) -> ProblemError:
    """Return the problem of a topic or group that belongs to the system."""
    what = field.removeprefix("/")
    return ProblemError(RESERVED_NAME, f"{what}: {name!r} belongs to the system", field=field, outcome=outcome)


def not_implemented(field: str, what: str, *, outcome: str | None = None) -> ProblemError:
    """Return the problem of a feature that only a later version has."""
    return ProblemError(NOT_IMPLEMENTED, f"{field}: {what}", field=field, outcome=outcome)


def describe_too_late(remark: str) -> str | None:
    """Return a text about the time that a broker has refused, or None if the remark is about something else.

    The remark is RocketMQ's text for its own clients.
    """
    found = _TOO_LATE.search(remark)
    return None if found is None else f"is {found[2]} ms ahead, at most {found[1]} ms are allowed"


BROKER_PROBLEMS: dict[ResponseCode, ProblemType] = {
    ResponseCode.SYSTEM_BUSY: BROKER_BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: INVALID_FIELD,
    ResponseCode.SERVICE_NOT_AVAILABLE: BROKER_UNAVAILABLE,
    ResponseCode.NO_PERMISSION: REFUSED_BY_BROKER,
    ResponseCode.TOPIC_NOT_EXIST: UNKNOWN_TOPIC,
    ResponseCode.QUERY_NOT_FOUND: UNKNOWN_MESSAGE,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: INVALID_FIELD,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: CONFLICT,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: CONFLICT,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: UNKNOWN_GROUP,
    ResponseCode.FILTER_DATA_NOT_EXIST: CONFLICT,
    ResponseCode.FILTER_DATA_NOT_LATEST: CONFLICT,
    ResponseCode.INVALID_PARAMETER: INVALID_FIELD,
    ResponseCode.CONSUMER_NOT_ONLINE: CONFLICT,
    ResponseCode.CONSUME_MSG_TIMEOUT: BROKER_TIMEOUT,
    ResponseCode.BROKER_NOT_EXIST: UNKNOWN_BROKER,
    ResponseCode.FLOW_CONTROL: BROKER_BUSY,
    ResponseCode.NOT_LEADER_FOR_QUEUE: BROKER_UNAVAILABLE,
    ResponseCode.GO_AWAY: BROKER_UNAVAILABLE,
    ResponseCode.TOPIC_EXIST_ALREADY: CONFLICT,
    ResponseCode.GANTRY_KEY_IN_USE: CONFLICT,
    # Codes that brokers do not use in answers to the gateway, and codes of errors inside the broker.
    **dict.fromkeys(
        (
            ResponseCode.SUCCESS,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.TRANSACTION_FAILED,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.VERSION_NOT_SUPPORTED,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
            ResponseCode.TRANSACTION_SHOULD_COMMIT,
            ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
            ResponseCode.TRANSACTION_STATE_UNKNOWN,
            ResponseCode.TRANSACTION_STATE_GROUP_WRONG,
            ResponseCode.NO_BUYER_ID,
            ResponseCode.NOT_IN_CURRENT_UNIT,
            ResponseCode.NO_MESSAGE,
            ResponseCode.POLLING_FULL,
            ResponseCode.POLLING_TIMEOUT,
            ResponseCode.BROKER_DISPATCH_NOT_COMPLETE,
            ResponseCode.BROADCAST_CONSUMPTION,
            ResponseCode.ILLEGAL_OPERATION,
            ResponseCode.USER_NOT_EXIST,
            ResponseCode.POLICY_NOT_EXIST,
        ),
        BROKER_ERROR,
    ),
}

CLIENT_PROBLEMS: dict[type[client.ClientError], ProblemType] = {
    client.InvalidArgumentError: INVALID_FIELD,
    client.NotStartedError: STOPPING,
    # A topic may exist without a route; usecases/configs/presence.py finds out.
    client.NoRouteError: BROKER_UNAVAILABLE,
    client.NotWritableError: REFUSED_BY_BROKER,
    client.BrokerUnavailableError: BROKER_UNAVAILABLE,
    client.RequestTimeoutError: BROKER_TIMEOUT,
    client.ConnectionFailedError: BROKER_UNAVAILABLE,
    client.BackpressureError: TOO_MANY,
    client.NoAnswerError: BROKER_UNAVAILABLE,
    client.ClientError: BROKER_ERROR,
}


def problem_of(error: Exception, *, outcome: str | None = None) -> ProblemError:
    """Return the problem that clients receive for an error.

    Args:
        error: Any exception.
        outcome: Outcome of the send that failed; None for other requests. The outcome in a SendError takes precedence.
    """
    if isinstance(error, ProblemError):
        if outcome is not None and error.outcome is None:
            error.outcome = outcome
        return error
    if isinstance(error, client.SendError):
        return _of_send(error)
    if isinstance(error, InvalidValueError):
        # The schemas may not import this module, so their errors carry the name of their problem type.
        kind = PROBLEM_TYPES[getattr(error, "problem", INVALID_FIELD.name)]
        return ProblemError(kind, str(error), field=error.field, outcome=outcome)
    if isinstance(error, client.ClientError):
        return _of_client(error, outcome)
    if isinstance(error, RecordError):
        return ProblemError(CORRUPT_RECORD, str(error), outcome=outcome)
    if isinstance(error, (HeaderError, BodyError, RemoteProtocolError)):
        return ProblemError(BROKER_ERROR, f"the answer can't be read: {error}", outcome=outcome)
    detail = "the gateway failed; its log describes the failure under this request_id"
    return ProblemError(INTERNAL, detail, outcome=outcome)


def topic_hint(topic: str) -> str:
    """Return a detail that names the call that creates a missing topic."""
    return f"topic: {topic!r} does not exist; PUT /v1/topics/{topic.replace('%', '%25')} creates it"


def _of_client(error: client.ClientError, outcome: str | None) -> ProblemError:
    if isinstance(error, client.InvalidArgumentError):
        return ProblemError(INVALID_FIELD, str(error), field=error.field, outcome=outcome)
    if isinstance(error, client.DrainedError):
        return ProblemError(BROKER_UNAVAILABLE, str(error), outcome=outcome)
    if isinstance(error, client.BrokerError):
        kind = _BROKER_PROBLEMS_BY_NUMBER.get(error.code, BROKER_ERROR)
        missing = _MISSING_TOPIC.search(error.remark or "") if kind is UNKNOWN_TOPIC else None
        # The remark is RocketMQ's text for its own clients.
        detail = str(error) if missing is None else topic_hint(missing[1])
        return ProblemError(kind, detail, outcome=outcome)
    if isinstance(error, client.NotWritableError) and error.is_transient:
        return ProblemError(BROKER_UNAVAILABLE, str(error), outcome=outcome)
    kind = next(CLIENT_PROBLEMS[known] for known in type(error).__mro__ if known in CLIENT_PROBLEMS)
    return ProblemError(kind, str(error), outcome=outcome)


def _of_send(error: client.SendError) -> ProblemError:
    outcome = str(error.outcome)
    problem = _of_client(error.cause, outcome)
    if outcome == UNKNOWN:
        problem = ProblemError(OUTCOME_UNKNOWN, problem.detail, field=problem.field, outcome=UNKNOWN)
    elif not isinstance(error.cause, client.NoRouteError):
        problem.retryable = error.retryable
    return problem


_MISSING_TOPIC = re.compile(r"\btopic *\[?([%|a-z0-9_-]{1,255})\]? not exist", re.IGNORECASE)
_TOO_LATE: Final = re.compile(r"bigger than the max delay (\d+)ms;.*; the delay is (\d+)ms")
_BROKER_PROBLEMS_BY_NUMBER: dict[int, ProblemType] = {int(code): kind for code, kind in BROKER_PROBLEMS.items()}
