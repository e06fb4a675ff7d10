"""Errors of the wire.

RemotingError
├── LocalProtocolError          we broke the protocol: a bug of the caller
├── RemoteProtocolError         the peer did: its connection is closed, counted and logged
│   └── FrameTooLargeError      it announced a frame beyond the limit; refused before it was read
├── HeaderError                 an ext field is missing or wrong: answered with code 1, the connection lives on
├── BodyError                   a body can't be read: answered likewise
└── RequestFailedError          a request of ours got no answer; `sent` says whether the peer may have seen it
    ├── ConnectError            no connection: certainly not sent
    ├── ConnectionLostError     the connection went away before the answer
    ├── RequestTimeoutError     no answer in time
    └── BackpressureError       too much is under way already: not sent

What a peer *answers* is no error here: a response code other than 0 is for the caller to read.
"""


class RemotingError(Exception):
    """Root of the family."""


class LocalProtocolError(RemotingError):
    """The caller asked for something the protocol can't carry."""


class RemoteProtocolError(RemotingError):
    """The peer sent bytes that are not the protocol's; nothing after them can be trusted."""


class FrameTooLargeError(RemoteProtocolError):
    """The peer announced a frame of `size_bytes`, beyond `max_bytes`."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"frame of {size_bytes} bytes, at most {max_bytes} are allowed")
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class HeaderError(RemotingError):
    """The ext field `field` (its name on the wire) is missing or has a wrong value."""

    def __init__(self, field: str, value: str | None, reason: str) -> None:
        shown = "is missing" if value is None else f"= {_shorten(value)}"
        super().__init__(f"header field {field} {shown}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class BodyError(RemotingError):
    """A body can't be read as `kind`; `field` is the JSON path where reading stopped, empty for the whole."""

    def __init__(self, kind: str, field: str, reason: str) -> None:
        super().__init__(f"body {kind}{' at ' + field if field else ''}: {reason}")
        self.kind = kind
        self.field = field
        self.reason = reason


class RequestFailedError(RemotingError):
    """A request got no answer. With `sent` False the peer has certainly not seen it."""

    def __init__(self, address: str, reason: str, *, sent: bool) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class ConnectError(RequestFailedError):
    """There is no connection to the address, so nothing was sent."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, sent=False)


class ConnectionLostError(RequestFailedError):
    """The connection went away while the request waited; `sent` is False if it had not left this process."""


class RequestTimeoutError(RequestFailedError):
    """No answer came within the time the caller gave; it may still come and is then dropped."""


class BackpressureError(RequestFailedError):
    """Too many requests or bytes wait on this connection, so nothing was sent; try again later."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, sent=False)


def _shorten(value: str) -> str:
    return repr(value if len(value) <= 100 else value[:100] + "…")
