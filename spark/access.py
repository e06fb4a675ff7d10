"""Credentials for brokers that ask for them (RocketMQ's ACL): their text, and the file in which it lies.

On a command line everybody on the machine could read them; in a file its owner says who can.
"""

from pathlib import Path
from typing import Final

from gantry.runtime.errors import StartupError

ACCESS_FORM: Final = "is not ACCESS_KEY:SECRET_KEY, with :SECURITY_TOKEN where there is one"
ACCESS_FILE_BYTES_MAX: Final = 16_384
"""Security tokens have some thousand characters; a larger file is another one."""


def split_access(text: str) -> tuple[str, ...] | None:
    """Return access key, secret key and, where there is one, security token; None where the text is not that."""
    parts = tuple(text.split(":"))
    is_whole = len(parts) in (2, 3) and all(part and part.isprintable() and " " not in part for part in parts)
    return parts if is_whole else None


def read_access_file(file: str, origin: str) -> str:
    """Return the credentials in a file, without the blanks around them.

    Args:
        file: Its path.
        origin: What named it, for the message: an option or a setting.

    Raises:
        StartupError: It can't be read or holds something else; the message never shows what.
    """
    try:
        with Path(file).open("rb") as source:
            content = source.read(ACCESS_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise StartupError(f"{origin}: {file}: can't be read: {reason or error}") from None
    if len(content) > ACCESS_FILE_BYTES_MAX:
        raise StartupError(f"{origin}: {file}: is larger than {ACCESS_FILE_BYTES_MAX} bytes")
    text = content.decode("utf-8", "replace").strip()
    if split_access(text) is None:
        raise StartupError(f"{origin}: {file}: what it holds {ACCESS_FORM}")
    return text
