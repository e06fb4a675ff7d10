"""Frames of a WebSocket client (RFC 6455, §5), read one at a time, without I/O.

The WebSocket library parses all received bytes in one go and keeps each fragment as an object. So one read of empty
frames blocks the event loop for 0.2 s, and a message in fragments of one byte costs a hundred times its size. This
reader returns one frame for each call, so that the caller decides how many frames are read before other tasks get their
turn. It joins the fragments of a message as they arrive. After the gateway's close frame it only looks for the peer's
(`skip`).

    bytes of a frame    meaning
    1                   FIN 1 bit, RSV 3 bits (0: no extension is negotiated), opcode 4 bits
    1                   MASK 1 bit (1: it comes from a client), length 7 bits
    0, 2 or 8           length if the 7 bits are 126 or 127, big-endian
    4                   mask
    length              payload, XORed with the mask
"""

from typing import Final, NamedTuple

from websockets.frames import Opcode

try:
    from websockets.speedups import apply_mask
except ImportError:  # pragma: no cover # The library was built without a C compiler.
    from websockets.utils import apply_mask

_CONTROL: Final = 0x8
_OPCODES: Final = {int(opcode): opcode for opcode in Opcode}
_CONTROL_BYTES_MAX: Final = 125
_SHORT_MAX: Final = 125
_TWO_BYTES: Final = 126
# A peer that sends more frames than this after the gateway's close frame will not complete the close either.
SKIPPED_FRAMES_MAX: Final = 1_000

PROTOCOL_ERROR: Final = 1002
MESSAGE_TOO_BIG: Final = 1009


class FrameError(Exception):
    """The peer broke the WebSocket protocol or a limit of it; `code` is the code to close the connection with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Received(NamedTuple):
    """The content of one frame.

    Attributes:
        opcode: TEXT or BINARY for a whole message; CONT for a fragment of a message that continues; or PING, PONG or
            CLOSE.
        data: The message, or the control frame's payload; empty for a fragment.
        size: Bytes of the frame's payload.
    """

    opcode: Opcode
    data: bytes
    size: int


class FrameReader:
    """Reads the frames of one client.

    Concurrency: one thread.
    """

    __slots__ = (
        "_at",
        "_chunk",
        "_is_final",
        "_kind",
        "_left",
        "_mask",
        "_message",
        "_message_bytes_max",
        "_size",
        "_skippable",
    )

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._chunk = b""
        self._at = 0
        # The message in progress: its opcode, and the payload received so far.
        self._kind: Opcode | None = None
        self._message = bytearray()
        # The data frame in progress: bytes of its payload in total and still missing.
        self._size = 0
        self._left = 0
        self._mask = b""
        self._is_final = False
        self._skippable = SKIPPED_FRAMES_MAX

    @property
    def held_bytes(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._message) + len(self._chunk) - self._at

    def feed(self, data: bytes) -> None:
        """Add bytes from the peer."""
        self._chunk = data if self._at == len(self._chunk) else self._chunk[self._at :] + data
        self._at = 0

    def next_frame(self) -> Received | None:
        """Return the next frame, or None if it is not complete yet.

        Raises:
            FrameError: The peer broke the protocol or sent too large a message. Nothing may be read after this.
        """
        if self._left:
            return self._take_payload()
        chunk, at = self._chunk, self._at
        have = len(chunk) - at
        if have < 2:  # Every frame has at least two bytes.
            self._chunk, self._at = chunk[at:], 0
            return None
        first, second = chunk[at], chunk[at + 1]
        opcode = self._check(first, second)
        length = second & 0x7F
        head = 6 if length <= _SHORT_MAX else 8 if length == _TWO_BYTES else 14
        if have < head:
            return None
        if length > _SHORT_MAX:
            length = int.from_bytes(chunk[at + 2 : at + head - 4], "big")
        mask = chunk[at + head - 4 : at + head]
        if opcode & _CONTROL:
            end = at + head + length
            if len(chunk) < end:
                return None
            self._at = end
            return Received(opcode, apply_mask(chunk[at + head : end], mask) if length else b"", length)
        size = len(self._message) + length
        if size > self._message_bytes_max:
            reason = f"a message has {size} bytes or more, at most {self._message_bytes_max} are allowed"
            raise FrameError(MESSAGE_TOO_BIG, reason)
        if self._kind is None:
            self._kind = opcode
        self._at = at + head
        self._size = self._left = length
        self._mask = mask
        self._is_final = first & 0x80 != 0
        return self._take_payload()

    def skip(self, data: bytes) -> bool:
        """Discard buffered and given bytes; return whether the peer's close frame was among them.

        Nothing is buffered any more, and `next_frame` may not be called again.
        """
        if self._message:
            self._message = bytearray()
        self.feed(data)
        chunk, at = self._chunk, self._at
        while self._skippable:
            skipped = min(self._left, len(chunk) - at)
            at += skipped
            self._left -= skipped
            if len(chunk) - at < 2:  # Every frame has at least two bytes.
                break
            first, second = chunk[at], chunk[at + 1]
            if first & 0x0F == Opcode.CLOSE:
                self._skippable = 0
                self._chunk, self._at = b"", 0
                return True
            length = second & 0x7F
            head = 6 if length <= _SHORT_MAX else 8 if length == _TWO_BYTES else 14
            if len(chunk) - at < head:
                break
            if length > _SHORT_MAX:
                length = int.from_bytes(chunk[at + 2 : at + head - 4], "big")
            at += head
            self._left = length
            self._skippable -= 1
        # At most the beginning of a header is kept.
        self._chunk, self._at = (chunk[at:] if self._skippable else b""), 0
        return False

    def _check(self, first: int, second: int) -> Opcode:
        """Return a frame's opcode. Raises FrameError if its first two bytes are not valid."""
        opcode = _OPCODES.get(first & 0x0F)
        if opcode is None:
            raise FrameError(PROTOCOL_ERROR, "invalid opcode")
        if first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "reserved bits must be 0")
        if not second & 0x80:
            raise FrameError(PROTOCOL_ERROR, "incorrect masking")
        if opcode & _CONTROL:
            if second & 0x7F > _CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "control frame too long")
            if not first & 0x80:
                raise FrameError(PROTOCOL_ERROR, "fragmented control frame")
            if opcode is Opcode.CLOSE and self._kind is not None:
                raise FrameError(PROTOCOL_ERROR, "incomplete fragmented message")
        elif (opcode is Opcode.CONT) is not (self._kind is not None):
            expected = "unexpected" if opcode is Opcode.CONT else "expected a"
            raise FrameError(PROTOCOL_ERROR, f"{expected} continuation frame")
        return opcode

    def _take_payload(self) -> Received | None:
        chunk, at = self._chunk, self._at
        end = min(at + self._left, len(chunk))
        kind = self._kind
        assert kind is not None, "a payload belongs to a message"
        is_whole = end - at == self._size and not self._message
        if is_whole and self._is_final:
            # The fast path: nearly all messages arrive in one read.
            self._at, self._left, self._kind = end, 0, None
            return Received(kind, apply_mask(chunk[at:end], self._mask), self._size)
        if end > at:
            turn = (self._size - self._left) % 4
            self._message += apply_mask(memoryview(chunk)[at:end], self._mask[turn:] + self._mask[:turn])
        self._at = end
        self._left -= end - at
        if self._left:
            # The chunk is used up; a reference would keep it in memory until the next one comes.
            self._chunk, self._at = b"", 0
            return None
        if not self._is_final:
            return Received(Opcode.CONT, b"", self._size)
        data, self._message, self._kind = bytes(self._message), bytearray(), None
        return Received(kind, data, self._size)
