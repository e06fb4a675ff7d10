"""The base class of typed headers. Values are strings on the wire; typed headers also have numbers and booleans.

A header is a msgspec Struct. Its field names are the names on the wire in snake_case (`queue_id` is `queueId`). A
field without a default is required. An absent optional field is None, and a field that is None is not written.
Unknown ext fields are ignored, because clients add their own (`bname`, `ns`, `oway`, `lo`, `ReqT`, signatures).

Source: the *RequestHeader and *ResponseHeader classes of RocketMQ, which Java maps by reflection.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from gantry.remoting.errors import HeaderError
from gantry.remoting.wireheader import Int32

__all__ = ["Header", "Int32", "Int64"]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# msgspec accepts these in `convert(..., strict=False)`. Java reads any text other than "true" as false.
_TRUE = "true"
_FALSE = "false"

_convert = msgspec.convert


class Header(msgspec.Struct, rename="camel", gc=False):
    """The base class of all typed headers."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header that the ext fields of a command contain.

        Raises:
            HeaderError: A required field is missing, or a field has a wrong value. It names the first such field.
        """
        try:
            return _convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise explain(ext, cls, error) from None

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields, all as strings. Fields that are None are omitted."""
        ext: dict[str, str] = {}
        for name, wire_name in _wire_names(type(self)):
            value = getattr(self, name)
            if value is None:
                continue
            if value is True:
                ext[wire_name] = _TRUE
            elif value is False:
                ext[wire_name] = _FALSE
            else:
                ext[wire_name] = str(value)
        return ext


def explain(ext: Mapping[str, str], header_type: type[Header], error: msgspec.ValidationError) -> HeaderError:
    """Return the error that names the first bad field. It may be slow, because it runs only for invalid requests."""
    for field in msgspec.structs.fields(header_type):
        value = ext.get(field.encode_name)
        if value is None:
            if field.required:
                return HeaderError(field.encode_name, None, "the request needs it")
            continue
        try:
            _convert(value, field.type, strict=False)
        except msgspec.ValidationError as reason:
            return HeaderError(field.encode_name, value, _describe_reason(str(reason)))
    return HeaderError("extFields", None, str(error))  # pragma: no cover - a struct fails only by one of its fields.


def _describe_reason(reason: str) -> str:
    return reason.replace("`int | null`", "`int`").replace("`bool | null`", "`bool`").removesuffix(" - at `$`")


_names: dict[type[Header], tuple[tuple[str, str], ...]] = {}


def _wire_names(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    names = _names.get(header_type)
    if names is None:
        fields: tuple[Any, ...] = msgspec.structs.fields(header_type)
        names = _names[header_type] = tuple((field.name, field.encode_name) for field in fields)
    return names
