"""What a frame's header says, whichever way it is coded."""

from typing import Annotated

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

OUR_LANGUAGE = "PYTHON"
UNTOLD_LANGUAGE = "OTHER"


class WireHeader(msgspec.Struct, rename={"ext_fields": "extFields", "language_name": "language"}, gc=False):
    """The logical header, the parent of RemotingCommand.

    The language stays the name it has in a JSON header: few ask for it, and names we don't know must not fail.
    """

    code: Int32
    ext_fields: dict[str, str] = {}
    flag: Int32 = 0
    language_name: str = UNTOLD_LANGUAGE
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0
