"""JSON header encoding, with Java's key order and fastjson's habits.

Format: a UTF-8 object `{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"version":479}`,
compact, keys sorted, absent members left out. `remark` and `extFields` are optional. Java adds
`serializeTypeCurrentRPC`; it is ignored, as is every other unknown key.

Reading is tolerant: values of extFields may be numbers or booleans (npm ali-ons sends them so) and become text.
Writing is strict: every value of extFields is a string, since the Go client drops a reply with anything else.

Theory of operation: the decoder builds the caller's own class in one step, so `WireHeader` is the parent of
RemotingCommand. A header whose extFields hold something other than strings fails that step and is decoded again
with a looser shape; only such peers pay for it.

Source: RocketMQ RemotingSerializable and RemotingCommand; docs/formats/remoting.md.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.wireheader import UNTOLD_LANGUAGE, Int32, WireHeader

H = TypeVar("H", bound=WireHeader)


class _LooseHeader(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """What peers other than Java may send."""

    code: Int32
    ext_fields: dict[str, str | int | float | bool | None] | None = None
    flag: Int32 | None = 0
    language: str | int | None = None
    opaque: Int32 | None = 0
    remark: str | None = None
    version: Int32 | None = 0


class _WrittenHeader(msgspec.Struct, rename={"ext_fields": "extFields"}, gc=False):
    """The members in the order Java writes them; UNSET ones are left out."""

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
    """Return a function that decodes the bytes of a JSON header into a fresh `header_type`.

    The function raises RemoteProtocolError, and nothing else, for bytes that are no such header.
    """
    decode = msgspec.json.Decoder(header_type).decode

    def decode_json_header(data: bytes) -> H:
        try:
            return decode(data)
        except (ValueError, RecursionError):  # msgspec's errors and UnicodeDecodeError are ValueErrors.
            return _to_strict(data, header_type)

    return decode_json_header


def encode_json_header(header: WireHeader) -> bytes:
    """Encode a header as Java would, without its `serializeTypeCurrentRPC`.

    Raises:
        LocalProtocolError: A text holds half a surrogate pair, which UTF-8 can't carry.
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
        language_name=loose.language if isinstance(loose.language, str) else UNTOLD_LANGUAGE,
        opaque=loose.opaque or 0,
        remark=loose.remark,
        version=loose.version or 0,
    )


def _to_text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
