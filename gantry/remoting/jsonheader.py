"""JSON header encoding, with the key order of Java and the rules of fastjson.

Format: a UTF-8 object `{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"version":479}`,
compact, with sorted keys. `remark` and `extFields` are optional; an absent member is omitted. Java adds
`serializeTypeCurrentRPC`. The decoder ignores it, as it ignores every other unknown key.

The decoder is tolerant: values of extFields may be numbers or booleans (npm ali-ons sends them), and the decoder
converts them to strings. The encoder is strict: every value of extFields is a string, because the Go client drops a
reply with any other value.

Theory of operation: the decoder builds the caller's class in one step, so `WireHeader` is the base class of
RemotingCommand. This step fails for a header with extFields that are not strings. The decoder then decodes the header
again with a looser type, so only peers that send such headers pay for the second step.

Source: RocketMQ RemotingSerializable and RemotingCommand; docs/formats/remoting.md.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.wireheader import UNKNOWN_LANGUAGE, Int32, WireHeader

H = TypeVar("H", bound=WireHeader)


class _LooseHeader(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A header as peers in other languages than Java may send it."""

    code: Int32
    ext_fields: dict[str, str | int | float | bool | None] | None = None
    flag: Int32 | None = 0
    language: str | int | None = None
    opaque: Int32 | None = 0
    remark: str | None = None
    version: Int32 | None = 0


class _WrittenHeader(msgspec.Struct, rename={"ext_fields": "extFields"}, gc=False):
    """The members in the order in which Java writes them. Members with the value UNSET are omitted."""

    code: int
    ext_fields: dict[str, str] | msgspec.UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    version: int


_encode = msgspec.json.Encoder().encode
_decode_loosely = msgspec.json.Decoder(_LooseHeader).decode
_UNSET = msgspec.UNSET


def json_header_decoder(header_type: type[H]) -> Callable[[bytes], H]:
    """Return a function that decodes the bytes of a JSON header into a new `header_type`.

    The function raises only RemoteProtocolError: the bytes are not a valid JSON header.
    """
    decode = msgspec.json.Decoder(header_type).decode

    def decode_json_header(data: bytes) -> H:
        try:
            return decode(data)
        except (ValueError, RecursionError):  # The errors of msgspec and UnicodeDecodeError are ValueErrors.
            return _to_strict(data, header_type)

    return decode_json_header


def encode_json_header(header: WireHeader) -> bytes:
    """Encode a header as Java does, but without `serializeTypeCurrentRPC`.

    Raises:
        LocalProtocolError: A string contains half of a surrogate pair, which UTF-8 can't encode.
    """
    try:
        return _encode(
            _WrittenHeader(
                header.code,
                header.ext_fields or _UNSET,
                header.flag,
                header.language_name,
                header.opaque,
                _UNSET if header.remark is None else header.remark,
                header.version,
            )
        )
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"header of code {header.code} can't be written as UTF-8: {error}") from None


def _to_strict(data: bytes, header_type: type[H]) -> H:
    try:
        loose = _decode_loosely(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header of {len(data)} bytes: {error}") from None
    return header_type(
        code=loose.code,
        ext_fields={key: _to_text(value) for key, value in (loose.ext_fields or {}).items() if value is not None},
        flag=loose.flag or 0,
        language_name=loose.language if isinstance(loose.language, str) else UNKNOWN_LANGUAGE,
        opaque=loose.opaque or 0,
        remark=loose.remark,
        version=loose.version or 0,
    )


def _to_text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
