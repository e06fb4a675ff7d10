"""What all typed headers share: texts on the wire, numbers and booleans here.

A header is a msgspec Struct whose field names are the wire's in snake_case (`queue_id` is `queueId`). A field
without a default is required; an optional one is None when absent, and then is not written. Unknown ext fields are
ignored: clients add their own (`bname`, `ns`, `oway`, `lo`, `ReqT`, signatures).

Source: RocketMQ's *RequestHeader and *ResponseHeader classes, which Java maps by reflection.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from gantry.remoting.errors import HeaderError
from gantry.remoting.wireheader import Int32

__all__ = ["Header", "Int32", "Int64"]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# What msgspec takes in `convert(..., strict=False)`; Java reads these two and everything else as false.
_TRUE = "true"
_FALSE = "false"

_convert = msgspec.convert


class Header(msgspec.Struct, rename="camel", gc=False):
    """The parent of all typed headers."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the header from a command's ext fields.

        Raises:
            HeaderError: A required field is missing, or one has a wrong value; names the first of them.
        """
        try:
            return _convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise explain(ext, cls, error) from None

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields, all of them texts; absent ones are left out."""
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
    """Find out which field a header failed at and say so; only on the way to a refusal, so it may be slow."""
    for field in msgspec.structs.fields(header_type):
        value = ext.get(field.encode_name)
        if value is None:
            if field.required:
                return HeaderError(field.encode_name, None, "the request needs it")
            continue
        try:
            _convert(value, field.type, strict=False)
        except msgspec.ValidationError as reason:
            return HeaderError(field.encode_name, value, _plainly(str(reason)))
    return HeaderError("extFields", None, str(error))  # pragma: no cover - a struct fails only by one of its fields.


def _plainly(reason: str) -> str:
    return reason.replace("`int | null`", "`int`").replace("`bool | null`", "`bool`").removesuffix(" - at `$`")


_names: dict[type[Header], tuple[tuple[str, str], ...]] = {}


def _wire_names(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    names = _names.get(header_type)
    if names is None:
        fields: tuple[Any, ...] = msgspec.structs.fields(header_type)
        names = _names[header_type] = tuple((field.name, field.encode_name) for field in fields)
    return names
