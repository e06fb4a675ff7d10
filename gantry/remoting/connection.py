"""One side of a connection without its socket: it decodes received bytes and encodes commands to send.

Theory of operation: `receive_data` cuts the stream into frames. It decodes complete frames directly from the bytes
object that the socket returned. Only an incomplete frame is copied into a buffer. The buffer grows until the frame is
complete, so a large body is copied a bounded number of times. `receive_data` checks the frame length and the header
length as soon as it has these two words, before the rest of the frame arrives.

A bad frame does not discard the good frames before it. `receive_data` returns the good frames first, and the next
call raises the error. The connection can't read anything after a bad frame, because the start of the next frame is
unknown.

The protocol is symmetric: both sides may send requests, and each side numbers its own requests.

Source: RocketMQ NettyDecoder and NettyRemotingAbstract.
"""

import struct
from collections.abc import Callable, Mapping

from gantry.remoting.command import (
    FRAME_BYTES_MAX,
    RemotingCommand,
    decode_frame_at,
    encode_frame,
)
from gantry.remoting.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError

_WORDS = struct.Struct(">II")
_WORD = struct.Struct(">I")
_LENGTH_BYTES = 4
_LARGE_BYTES = 64 * 1024
_OPAQUE_MAX = 2**31 - 1


class Connection:
    """A codec for one connection: it splits and decodes received bytes, and numbers and encodes commands.

    Args:
        frame_bytes_max: The size of the largest frame that is accepted or sent, with its length word.
        typed: Decoders of frequent requests, see typedrequest.

    Attributes:
        error: The protocol error of the peer, or None. After an error the connection reads nothing more.

    Concurrency: one thread uses a connection. No call blocks.
    """

    __slots__ = ("_buffer", "_frame_bytes_max", "_needed_bytes", "_next_opaque", "_typed", "error")

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        typed: Mapping[bytes, Callable[[bytes], RemotingCommand]] | None = None,
    ) -> None:
        assert 64 <= frame_bytes_max <= FRAME_BYTES_MAX, f"frame_bytes_max {frame_bytes_max}"
        self._frame_bytes_max = frame_bytes_max
        self._typed = typed or {}
        self._buffer = bytearray()
        self._needed_bytes = _LENGTH_BYTES
        self._next_opaque = 0
        self.error: RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> list[RemotingCommand]:
        """Process received bytes and return the commands that are now complete, in order.

        Raises:
            RemoteProtocolError: The peer broke the protocol. If `data` has good frames before the bad one, this call
                returns them and sets `error`, and the next call raises. Every later call raises the same error again.
        """
        if self.error is not None:
            raise self.error
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed_bytes:
                return []
            self._buffer = bytearray()
        commands: list[RemotingCommand] = []
        try:
            if buffer:
                if self._needed_bytes > _LARGE_BYTES:
                    commands.append(self._take_large(buffer))
                data = bytes(buffer)
            at = self._decode_all(data, commands)
        except RemoteProtocolError as error:
            self.error = error
            if not commands:
                raise
            return commands
        if at < len(data):
            self._buffer += data[at:]
        return commands

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes received of an incomplete frame."""
        return len(self._buffer)

    def receive_eof(self) -> None:
        """Record that the peer will send no more bytes.

        Raises:
            RemoteProtocolError: The stream ended within a frame, or the peer broke the protocol before.
        """
        if self.error is None and self._buffer:
            self.error = RemoteProtocolError(
                f"connection ended within a frame: {len(self._buffer)} of at least {self._needed_bytes} bytes came"
            )
        if self.error is not None:
            raise self.error

    def next_opaque(self) -> int:
        """Return the opaque of the next request. An opaque repeats after 2³¹ requests."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def send(self, command: RemotingCommand) -> bytes:
        """Return the bytes of a command. The caller sets the opaque of a request first (see `next_opaque`).

        Raises:
            LocalProtocolError: The command does not fit its coding or the frame limit.
        """
        frame = encode_frame(command)
        if len(frame) > self._frame_bytes_max:
            raise LocalProtocolError(f"frame of {len(frame)} bytes, at most {self._frame_bytes_max} are allowed")
        return frame

    def _take_large(self, buffer: bytearray) -> RemotingCommand:
        """Decode the first frame of a buffer and remove it. The body may have megabytes and is copied only once."""
        stop = self._needed_bytes
        _, header_word = _WORDS.unpack_from(buffer)
        body_at = 8 + (header_word & 0xFFFFFF)
        command = decode_frame_at(bytes(buffer[:body_at]), 8, body_at, header_word, self._typed)
        if body_at < stop:
            with memoryview(buffer) as view:
                command.body = bytes(view[body_at:stop])
        del buffer[:stop]
        return command

    def _decode_all(self, data: bytes, commands: list[RemotingCommand]) -> int:
        """Append all complete frames to `commands`, set `_needed_bytes` for the next frame and return its start."""
        end = len(data)
        at = 0
        limit = self._frame_bytes_max
        unpack, decode, append, typed = _WORDS.unpack_from, decode_frame_at, commands.append, self._typed
        while end - at >= 8:
            frame_size, header_word = unpack(data, at)
            if frame_size + 4 > limit:
                raise FrameTooLargeError(frame_size + 4, limit)
            stop = at + 4 + frame_size
            if at + 8 + (header_word & 0xFFFFFF) > stop:
                raise RemoteProtocolError(f"header of {header_word & 0xFFFFFF} bytes in a frame of {frame_size}")
            if stop > end:
                self._needed_bytes = stop - at
                return at
            append(decode(data, at + 8, stop, header_word, typed))
            at = stop
        if end - at >= _LENGTH_BYTES:
            (frame_size,) = _WORD.unpack_from(data, at)
            if frame_size + 4 > limit:
                raise FrameTooLargeError(frame_size + 4, limit)
            if frame_size < 4:
                raise RemoteProtocolError(f"frame of {frame_size} bytes, its header word alone has 4")
            self._needed_bytes = 8
        else:
            self._needed_bytes = _LENGTH_BYTES
        return at
