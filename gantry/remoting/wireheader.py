"""The logical header of a frame, independent of its coding."""

from typing import Annotated

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

OUR_LANGUAGE = "PYTHON"
UNKNOWN_LANGUAGE = "OTHER"


class WireHeader(msgspec.Struct, rename={"ext_fields": "extFields", "language_name": "language"}, gc=False):
    """The logical header; the base class of RemotingCommand.

    `language_name` keeps the language as the name from a JSON header. Few callers need the language, and an unknown
    name must not cause an error.
    """

    code: Int32
    ext_fields: dict[str, str] = {}
    flag: Int32 = 0
    language_name: str = UNKNOWN_LANGUAGE
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0
