"""Errors of the Remoting protocol.

RemotingError
├── LocalProtocolError          our side broke the protocol: a bug of the caller
├── RemoteProtocolError         the peer broke the protocol: the connection is closed, counted and logged
│   └── FrameTooLargeError      the peer announced a frame above the limit: rejected before it is read
├── HeaderError                 an ext field is missing or wrong: answered with code 1, the connection stays open
├── BodyError                   a body can't be decoded: answered with code 1, the connection stays open
└── RequestFailedError          our request got no response; `sent` says whether the peer may have received it
    ├── ConnectError            no connection: the request was not sent
    ├── ConnectionLostError     the connection was lost before the response came
    ├── RequestTimeoutError     no response came in time
    └── BackpressureError       too many requests or bytes are waiting: the request was not sent

A response with an error code raises none of these errors. The caller checks the response code.
"""


class RemotingError(Exception):
    """Base class of all errors of the Remoting protocol."""


class LocalProtocolError(RemotingError):
    """The caller passed something that the protocol can't carry."""


class RemoteProtocolError(RemotingError):
    """The peer sent bytes that break the protocol. Nothing after these bytes can be trusted."""


class FrameTooLargeError(RemoteProtocolError):
    """The peer announced a frame of `size_bytes`, which is more than `max_bytes`."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"frame of {size_bytes} bytes, at most {max_bytes} are allowed")
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class HeaderError(RemotingError):
    """The ext field `field` (its name on the wire) is missing or has a wrong value."""

    def __init__(self, field: str, value: str | None, reason: str) -> None:
        value_text = "is missing" if value is None else f"= {_shorten(value)}"
        super().__init__(f"header field {field} {value_text}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class BodyError(RemotingError):
    """A body can't be decoded as `kind`. `field` is the JSON path of the error; it is empty for the whole body."""

    def __init__(self, kind: str, field: str, reason: str) -> None:
        super().__init__(f"body {kind}{' at ' + field if field else ''}: {reason}")
        self.kind = kind
        self.field = field
        self.reason = reason


class RequestFailedError(RemotingError):
    """A request got no response. If `sent` is False, the peer has certainly not received the request."""

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class ConnectError(RequestFailedError):
    """No connection to the address could be opened, so the request was not sent."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, sent=False)


class ConnectionLostError(RequestFailedError):
    """The connection was lost before the response came. `sent` is False if the request never left this process."""


class RequestTimeoutError(RequestFailedError):
    """No response came within the caller's time-out. A response that comes later is dropped."""


class BackpressureError(RequestFailedError):
    """Too many requests or bytes wait on this connection, so the request was not sent. The caller may retry later."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, sent=False)


def _shorten(value: str) -> str:
    return repr(value if len(value) <= 100 else value[:100] + "…")
