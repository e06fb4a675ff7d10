"""RemotingCommand and the frame that carries it.

Format (big-endian; docs/formats/remoting.md):
    offset  size  field
    0       4     frame_size: number of bytes that follow, 4 + header + body
    4       4     high byte = coding of the header (0 JSON, 1 ROCKETMQ), low 24 bits = header_size
    8       n     header
    8+n     m     body; an empty body is the same as no body

Source: RocketMQ RemotingCommand.
"""

import enum
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from gantry.remoting.binaryheader import decode_binary_header, encode_binary_header
from gantry.remoting.codes import ANNOUNCED_VERSION, LanguageCode
from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.jsonheader import encode_json_header, json_header_decoder
from gantry.remoting.wireheader import OUR_LANGUAGE, WireHeader

FRAME_BYTES_MAX = 16 * 1024 * 1024  # RocketMQ's limit. It includes the length word.
HEADER_BYTES_MAX = (1 << 24) - 1

_WORD = struct.Struct(">I")
_WORDS = struct.Struct(">II")

_RESPONSE = 1
_ONE_WAY = 2

if TYPE_CHECKING:
    Body = bytes | bytearray | memoryview
else:
    Body = Any  # msgspec can't decode this union, and the JSON header never contains the body.


class SerializeType(enum.IntEnum):
    """The coding of a header. Each frame names its own coding."""

    JSON = 0
    ROCKETMQ = 1


class EncodableHeader(Protocol):
    """A typed header (gantry.remoting.headers)."""

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields; all values are strings."""
        ...


class RemotingCommand(WireHeader, gc=False):
    """A request, a one-way request or a response.

    Attributes:
        code: A RequestCode or, in a response, a ResponseCode. A plain int, because peers also send unknown codes.
        ext_fields: The fields of the typed header and any extra fields.
        body: The body. In a received command it is bytes or None.
        header: The typed header, if the request was decoded together with it (see typedrequest). `ext_fields` is
            empty then. Otherwise None.
    """

    body: Body | None = None
    serialize_type: int = SerializeType.JSON
    header: Any = None

    @classmethod
    def request(
        cls,
        code: int,
        header: EncodableHeader | None = None,
        *,
        body: Body | None = None,
        one_way: bool = False,
        ext: dict[str, str] | None = None,
    ) -> Self:
        """Build a request. The connection that sends it sets the opaque. `ext` adds to the fields of the header."""
        fields = {} if header is None else header.to_ext()
        if ext:
            fields.update(ext)
        flag = _ONE_WAY if one_way else 0
        return cls(code, fields, flag, OUR_LANGUAGE, 0, None, ANNOUNCED_VERSION, body)

    @classmethod
    def response_to(
        cls,
        request: "RemotingCommand",
        code: int,
        header: EncodableHeader | None = None,
        *,
        remark: str | None = None,
        body: Body | None = None,
        ext: dict[str, str] | None = None,
    ) -> Self:
        """Build the response to a request. It has the opaque and the coding of the request."""
        fields = {} if header is None else header.to_ext()
        if ext:
            fields.update(ext)
        return cls(
            code,
            fields,
            _RESPONSE,
            OUR_LANGUAGE,
            request.opaque,
            remark,
            ANNOUNCED_VERSION,
            body,
            request.serialize_type,
        )

    def drop_content(self) -> None:
        """Drop the body, the ext fields and the typed header of a request that waits for its response.

        A response needs only the rest: opaque, coding and flags. Thousands of requests may wait at the same time, and
        each may have a body of several megabytes.
        """
        self.body = None
        self.header = None
        self.ext_fields = {}

    @property
    def is_response(self) -> bool:
        """Whether this command answers a request. The receiver of the command has sent that request."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender expects no response."""
        return self.flag & _ONE_WAY != 0

    @property
    def body_bytes(self) -> bytes:
        """The body as bytes; empty if there is no body."""
        body = self.body
        if body is None:
            return b""
        return body if isinstance(body, bytes) else bytes(body)

    @property
    def language(self) -> LanguageCode:
        """The programming language of the peer; OTHER for an unknown name."""
        return LanguageCode.__members__.get(self.language_name, LanguageCode.OTHER)


_decode_json = json_header_decoder(RemotingCommand)
# Plain ints, because the lookup of an enum member costs as much as a small call.
_JSON, _ROCKETMQ = int(SerializeType.JSON), int(SerializeType.ROCKETMQ)
RECOGNISED_BYTES: Final = 12
_NONE: Mapping[bytes, Callable[[bytes], RemotingCommand]] = {}


def decode_frame(data: bytes) -> RemotingCommand:
    """Decode one frame. `data` starts after the length word.

    Raises:
        RemoteProtocolError: The bytes are not a valid frame.
    """
    size = len(data)
    if size < 4:
        raise RemoteProtocolError(f"frame of {size} bytes, its header word alone has 4")
    (word,) = _WORD.unpack_from(data)
    return decode_frame_at(data, 4, size, word)


def decode_frame_at(
    data: bytes,
    at: int,
    end: int,
    header_word: int,
    typed: Mapping[bytes, Callable[[bytes], RemotingCommand]] = _NONE,
) -> RemotingCommand:
    """Decode the header at `at` and the body that follows it, up to `end`. This is the hot path of a connection.

    `typed` maps the first RECOGNISED_BYTES of a header to the decoder of such requests.

    Raises:
        RemoteProtocolError: The header is longer than the frame, has an unknown coding, or is malformed.
    """
    body_at = at + (header_word & 0xFFFFFF)
    if body_at > end:
        raise RemoteProtocolError(f"header of {header_word & 0xFFFFFF} bytes in a frame of {end - at + 4}")
    coding = header_word >> 24
    if coding == 0:
        header = data[at:body_at]
        decode = typed.get(header[:RECOGNISED_BYTES])
        if decode is None:
            command = _decode_json(header)
            command.header = None
        else:
            try:
                command = decode(header)
            except (ValueError, RecursionError):
                command = _decode_json(header)
                command.header = None
        # A peer may send members named `header`, `serialize_type` or `body`. Overwrite them: only this side sets them.
        command.serialize_type = _JSON
        command.body = data[body_at:end] if body_at < end else None
    elif coding == 1:
        command = decode_binary_header(data[at:body_at], RemotingCommand)
        command.serialize_type = _ROCKETMQ
        command.body = data[body_at:end] if body_at < end else None
    else:
        raise RemoteProtocolError(f"header coding {coding} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    return command


def encode_frame(command: RemotingCommand) -> bytes:
    """Encode a whole frame, including the length word.

    Raises:
        LocalProtocolError: The command does not fit its coding or exceeds the size of a frame.
    """
    body = command.body
    if body is None:
        return encode_head(command)
    return b"".join((encode_head(command), body))


def encode_head(command: RemotingCommand) -> bytes:
    """Encode everything except the body, so that a large body is copied only once, when the socket sends it.

    Raises:
        LocalProtocolError: The command does not fit its coding or exceeds the size of a frame.
    """
    header = encode_json_header(command) if command.serialize_type == 0 else encode_binary_header(command)
    header_size = len(header)
    frame_size = 4 + header_size if command.body is None else 4 + header_size + len(command.body)
    if frame_size + 4 > FRAME_BYTES_MAX or header_size > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"frame of {frame_size + 4} bytes, at most {FRAME_BYTES_MAX} are allowed")
    return _WORDS.pack(frame_size, command.serialize_type << 24 | header_size) + header
