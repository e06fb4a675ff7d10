"""Messages as a gateway encodes them."""

from typing import Any


def message(offset: int, *, binary: bool = True, **fields: Any) -> dict[str, Any]:
    """Return a message for MessagePack, or for JSON."""
    return {
        "message_id": f"M{offset}", "stored_id": f"S{offset}", "topic": "T", "broker": "b", "queue_id": 0,
        "queue_offset": offset if binary else str(offset), "body": b"\x00body" if binary else "AGJvZHk=",
        "encoding": "binary" if binary else "base64", "tag": None, "keys": [], "properties": {}, "born_at": "",
        "stored_at": "", "born_host": "", "reconsume_times": 0, "size": 100, "receipt": f"r{offset}",
    } | fields  # fmt: skip
