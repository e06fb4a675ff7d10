"""The encodings of a message's body, in requests and in answers."""

from typing import Final

TEXT: Final = "text"
BASE64: Final = "base64"
BINARY: Final = "bytes"
