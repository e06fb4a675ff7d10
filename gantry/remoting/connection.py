"""One side of a connection without its socket: bytes come in, commands go out, and the other way round.

Theory of operation: `receive_data` cuts the stream into frames. What arrives whole is decoded straight from the
bytes object that the socket gave; only an unfinished frame is copied into a buffer, which then grows until the
frame is complete, so that a large body is copied a bounded number of times. A frame's length and header length are
judged as soon as their words are there, before the rest is read.

A bad frame does not take the good ones before it along: they are returned first, and the error is raised by the
next call. After it nothing more can be read, since nobody knows where the next frame starts.

The protocol is symmetric: either side may send requests, each with opaques of its own.

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
    """Splits and decodes what the peer sends, numbers and encodes what goes to it.

    Args:
        frame_bytes_max: The largest frame that is taken or sent.
        typed: Decoders of requests that come often, see typedrequest.

    Concurrency: used by one thread; no call waits.
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
        """Take what arrived and return the commands that are complete now, in order.

        Raises:
            RemoteProtocolError: The peer broke the protocol; at once if nothing good came before it in `data`,
                else by the next call (`error` says so meanwhile). Every later call raises it again.
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
        """How much of an unfinished frame has come."""
        return len(self._buffer)

    def receive_eof(self) -> None:
        """Take note that the peer sends no more.

        Raises:
            RemoteProtocolError: It stopped within a frame.
        """
        if self.error is None and self._buffer:
            self.error = RemoteProtocolError(
                f"connection ended within a frame: {len(self._buffer)} of at least {self._needed_bytes} bytes came"
            )
        if self.error is not None:
            raise self.error

    def next_opaque(self) -> int:
        """Return the id of the next request; unique until 2³¹ more have been sent."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def send(self, command: RemotingCommand) -> bytes:
        """Return the bytes of a command; a request that has none yet should be given its opaque first.

        Raises:
            LocalProtocolError: The command does not fit its coding or the frame limit.
        """
        frame = encode_frame(command)
        if len(frame) > self._frame_bytes_max:
            raise LocalProtocolError(f"frame of {len(frame)} bytes, at most {self._frame_bytes_max} are allowed")
        return frame

    def _take_large(self, buffer: bytearray) -> RemotingCommand:
        """Decode the first frame of a buffer and drop it; its body, which may have megabytes, is copied once only."""
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
        """Decode all whole frames into `commands`, set how many bytes the next one needs, return where it starts."""
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
