"""A stored message as answers show it, the same over REST and WebSocket.

`message_view` returns the shape of api.md. With `binary` the view is for MessagePack: the body is bytes, its `encoding`
is `bytes`, and offsets are integers. Otherwise the view is for JSON: the body is text or base64, and offsets are
strings.
"""

from base64 import b64encode
from typing import Any, Final

from gantry.model.propertyname import RESERVED_PROPERTIES, TRANSIENT_PREFIX, PropertyName
from services.gateway.schemas.messages import BASE64, BINARY, TEXT
from services.gateway.schemas.times import format_time
from services.gateway.usecases.reading.messages import ReadMessage

LARGE_BODY_BYTES: Final = 48 * 1024
"""Size above which writing a body as JSON takes noticeable time."""

_TAGS: Final = PropertyName.TAGS
_UNIQ_KEY: Final = PropertyName.UNIQ_KEY


def message_view(
    message: ReadMessage, *, binary: bool = False, system: bool = False, leaves_large: bool = False
) -> dict[str, Any]:
    """Return a message as answers show it.

    Args:
        message: The message.
        binary: Whether the view is for MessagePack, with bytes and integers instead of texts.
        system: Whether the view includes the properties that belong to the system.
        leaves_large: Whether a large body stays bytes, for JSON that asgi/writing.py writes in slices.
    """
    stored, body = message.record, message.body
    properties = stored.properties
    stored_id = stored.stored_id
    view = {
        "message_id": properties.get(_UNIQ_KEY) or stored_id,
        "stored_id": stored_id,
        "topic": stored.topic,
        "broker": message.broker,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset if binary else str(stored.queue_offset),
        "body": body,
        "encoding": BINARY,
        "tag": properties.get(_TAGS),
        "keys": stored.keys,
        "properties": user_properties(properties),
        "born_at": format_time(stored.born_at_ms),
        "stored_at": format_time(stored.stored_at_ms),
        "born_host": str(stored.born_host),
        "reconsume_times": stored.reconsume_times,
        "size": stored.size_bytes,
    }
    if not binary and not (leaves_large and len(body) > LARGE_BODY_BYTES):
        view["body"], view["encoding"] = body_view(body)
    if system:
        view["system_properties"] = system_properties(properties)
    return view


def body_view(body: bytes) -> tuple[str, str]:
    """Return a body as a JSON text, and its encoding: `text` if the body is UTF-8, otherwise `base64`."""
    try:
        return body.decode(), TEXT
    except UnicodeDecodeError:
        return b64encode(body).decode(), BASE64


def user_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties that users set."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_PROPERTIES and not name.startswith(TRANSIENT_PREFIX)
    }


def system_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties that belong to the system."""
    return {
        name: value
        for name, value in properties.items()
        if name in RESERVED_PROPERTIES or name.startswith(TRANSIENT_PREFIX)
    }
