"""Credentials for brokers that require them (RocketMQ's ACL): their text form, and the file that holds it.

Every user of the machine can read the command lines of processes. The owner of a file decides who can read it.
"""

from pathlib import Path
from typing import Final

from gantry.runtime.errors import StartupError

ACCESS_FORM: Final = "is not ACCESS_KEY:SECRET_KEY[:SECURITY_TOKEN]"
ACCESS_FILE_BYTES_MAX: Final = 16_384
"""The size limit of the file. Security tokens have a few thousand characters, so a larger file is the wrong one."""


def split_access(text: str) -> tuple[str, ...] | None:
    """Return the access key, the secret key and the optional security token; None if the text has another form."""
    parts = tuple(text.split(":"))
    is_whole = len(parts) in (2, 3) and all(part and part.isprintable() and " " not in part for part in parts)
    return parts if is_whole else None


def read_access_file(file: str, origin: str) -> str:
    """Return the credentials in a file, without surrounding white space.

    Args:
        file: The path of the file.
        origin: The option or setting that names the file, for error messages.

    Raises:
        StartupError: The file can't be read or has other content; the message never shows the content.
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
        raise StartupError(f"{origin}: {file}: its content {ACCESS_FORM}")
    return text
