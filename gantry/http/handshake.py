"""Opens a stream: the WebSocket handshake, the welcome, and the errors of a refusal."""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)
from websockets.typing import Subprotocol

from gantry.http.call import read_problem
from gantry.http.errors import (
    NOT_STORED,
    GantryConnectionError,
    GantryError,
    GantryProtocolError,
    StreamClosedError,
)
from gantry.http.proxies import follows_proxies
from gantry.http.streamframes import Goodbye, StreamCoding, Welcome

ABNORMAL_CLOSURE: Final = 1006
# A frame holds the messages of one pull from a broker: one message of any size, or several with at most 256 KiB
# together.
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
FRAMES_BUFFERED_MAX: Final = 64


class Socket(Protocol):
    """The part of a WebSocket that a stream uses. Reading and writing raise websockets' ConnectionClosed."""

    async def recv(self) -> bytes | str:
        """Return the next frame."""
        ...

    async def send(self, message: bytes | str) -> None:
        """Send a frame."""
        ...

    async def close(self, code: int = 1000) -> None:
        """Close the connection."""
        ...


class StreamOpener(Protocol):
    """Opens a stream, as `open_stream` does."""

    async def __call__(
        self,
        url: str,
        coding: StreamCoding,
        *,
        headers: Mapping[str, str],
        hello: Mapping[str, object],
        timeout_s: float,
    ) -> tuple[Socket, Welcome]:
        """Return a connection that was welcomed; it has sent the fields of `hello`, if there are any."""
        ...


async def open_stream(
    url: str, coding: StreamCoding, *, headers: Mapping[str, str], hello: Mapping[str, object], timeout_s: float
) -> tuple[Socket, Welcome]:
    """Return a connection that was welcomed; it has sent the fields of `hello`, if there are any.

    Raises:
        GantryProblem: The gateway refused the handshake.
        GantryConnectionError: It can't be reached, or the connection broke.
        StreamClosedError: It said goodbye at once.
        GantryProtocolError: Something else answered.
    """
    url_without_query = url.partition("?")[0]  # The query has the ticket, which errors must not show.
    try:
        socket = await connect(
            url,
            subprotocols=[Subprotocol(coding.subprotocol)],
            compression=None,
            additional_headers=headers,
            proxy=True if follows_proxies(url) else None,
            open_timeout=timeout_s,
            max_size=FRAME_BYTES_MAX,
            max_queue=FRAMES_BUFFERED_MAX,
        )
    except InvalidStatus as error:
        answer = error.response
        lower = {name.lower(): value for name, value in answer.headers.raw_items()}
        raise read_problem(answer.status_code, lower, bytes(answer.body or b"")) from None
    except (OSError, EOFError, ProxyError, InvalidProxy) as error:
        raise GantryConnectionError(f"{url_without_query} can't be reached: {error}", outcome=NOT_STORED) from error
    except (InvalidHandshake, InvalidURI, ConnectionClosed) as error:
        raise GantryProtocolError(f"{url_without_query} is no stream: {error}") from error
    try:
        async with asyncio.timeout(timeout_s):
            return socket, await _receive_welcome(socket, coding, hello)
    except (ConnectionClosed, TimeoutError) as error:
        await socket.close()
        raise GantryConnectionError(
            f"{url_without_query} ended before its welcome: {error}", outcome=NOT_STORED
        ) from error
    except GantryError:
        await socket.close()
        raise


async def _receive_welcome(socket: ClientConnection, coding: StreamCoding, hello: Mapping[str, object]) -> Welcome:
    first = coding.decode(await socket.recv())
    if isinstance(first, Goodbye):
        await socket.wait_closed()
        raise StreamClosedError(socket.close_code or ABNORMAL_CLOSURE, first.reason)
    if not isinstance(first, Welcome):
        raise GantryProtocolError(f"the first frame is {type(first).__name__}, not a welcome")
    if hello:
        await socket.send(coding.encode({"type": "hello", **hello}))
    return first
