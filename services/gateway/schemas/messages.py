"""A message in answers and frames, and the encodings of its body, which requests have, too."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

TEXT: Final = "text"
BASE64: Final = "base64"
BINARY: Final = "bytes"


class ShownMessage(msgspec.Struct, gc=False):
    """A message that a group gets, in a pull or in a stream. It is a struct for speed.

    In MessagePack, the body is bytes and the queue offset a number; in JSON, both are texts. Only a large body stays bytes
    in JSON, too, until it is written in slices (asgi/writing.py).
    """

    message_id: str
    stored_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int | str
    body: bytes | str
    encoding: str
    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    born_at: str
    stored_at: str
    born_host: str
    reconsume_times: int
    size: int
    receipt: str
