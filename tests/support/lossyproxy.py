"""A proxy that loses answers: the server has carried the request out, and the connection ends before the client hears of it.

It runs in threads of its own, so that a test can wait for a client that is another process.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from gantry.remoting.codes import RequestCode
from gantry.remoting.connection import Connection

_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_CHUNK_BYTES = 65_536


class Watch(Protocol):
    """Watches one connection."""

    def asked(self, data: bytes) -> None:
        """Take bytes of the client, before the server gets them."""
        ...

    def is_lost(self, data: bytes) -> bool:
        """Take bytes of the server, and return whether they have an answer that the client must not get."""
        ...


class LossyProxy:
    """Forwards connections to `target`. When a watch says so, it ends the connection instead of forwarding an answer.

    Attributes:
        lost: Number of lost answers so far.
    """

    def __init__(self, listen: tuple[str, int], target: tuple[str, int], watch: Callable[[], Watch]) -> None:
        self._target = target
        self._watch = watch
        self._listener = socket.create_server(listen)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self.lost = 0

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shut(self._listener)
        self._accepting.join(10)
        self._listener.close()
        _shut(*self._sockets)
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._sockets += (client, server)
            self._forward(client, server, self._watch())

    def _forward(self, client: socket.socket, server: socket.socket, watch: Watch) -> None:
        def up() -> None:
            while data := _receive(client):
                watch.asked(data)
                if not _send(server, data):
                    break
            _shut(client, server)

        def down() -> None:
            while data := _receive(server):
                if watch.is_lost(data):
                    self.lost += 1
                    break
                if not _send(client, data):
                    break
            _shut(client, server)

        def both() -> None:
            upward = threading.Thread(target=up, daemon=True)
            upward.start()
            down()
            upward.join()
            # Not before both threads have ended: a new connection might get the number of a closed socket that one still reads.
            client.close()
            server.close()

        self._spawn(both)


class FirstAnswers:
    """Makes the watches of a broker's connections: they lose the answer to the first send of each body to each topic.

    A client that sends a message again sends the same body, so its second request is answered.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, bytes]] = set()

    def __call__(self) -> Watch:
        return _SendWatch(self._seen)


class _SendWatch:
    def __init__(self, seen: set[tuple[str, bytes]]) -> None:
        self._seen = seen
        self._unanswered: set[int] = set()
        self._requests, self._answers = Connection(), Connection()

    def asked(self, data: bytes) -> None:
        for request in self._requests.receive_data(data):
            if request.code not in _SENDS or request.is_response:
                continue
            # The second version of the request has short names for the fields.
            send = (request.ext_fields.get("topic") or request.ext_fields["b"], request.body_bytes)
            if send not in self._seen:
                self._seen.add(send)
                self._unanswered.add(request.opaque)

    def is_lost(self, data: bytes) -> bool:
        answers = self._answers.receive_data(data)
        return any(answer.is_response and answer.opaque in self._unanswered for answer in answers)


class TextAnswers:
    """Makes the watches of connections whose answers contain a text: they lose as many of them as `losses` says."""

    def __init__(self, text: bytes, losses: int = 1) -> None:
        self._text = text
        self.losses = losses

    def __call__(self) -> Watch:
        return _TextWatch(self, self._text)


class _TextWatch:
    def __init__(self, answers: TextAnswers, text: bytes) -> None:
        self._answers = answers
        self._text = text
        self._end = b""

    def asked(self, data: bytes) -> None:
        pass

    def is_lost(self, data: bytes) -> bool:
        seen = self._end + data
        self._end = seen[1 - len(self._text) :]
        if self._text not in seen or self._answers.losses == 0:
            return False
        self._answers.losses -= 1
        return True


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(_CHUNK_BYTES)
    except OSError:
        return b""


def _send(sink: socket.socket, data: bytes) -> bool:
    try:
        sink.sendall(data)
    except OSError:
        return False
    return True


def _shut(*sockets: socket.socket) -> None:
    """End connections without closing the sockets, which other threads use."""
    for open_socket in sockets:
        with suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)
