"""Requests that are built before a run, so that building them costs no time in the run."""

import json
import struct

from gantry.model.batch import encode_batch
from gantry.remoting.codes import RequestCode

BODY = bytes(range(32, 96)) * 16
assert len(BODY) == 1024
_WORDS = struct.Struct(">II")


def frame(code: int, ext_fields: dict[str, str], opaque: int, body: bytes = b"") -> bytes:
    """Return a request in the form of a Java client."""
    fields = {"code": code, "extFields": ext_fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    header = json.dumps(fields, separators=(",", ":")).encode()
    return _WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def _send_fields(topic: str, queue_id: int, properties: str, *, batch: bool) -> dict[str, str]:
    return {
        "a": "PID_bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1795255510791", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip


def send_frame(topic: str, number: int, *, queues: int = 4, queue_id: int | None = None) -> bytes:
    """Return a SEND_MESSAGE_V2 of one message of 1 KiB with a unique key, to `queue_id` or else to the queues in turn."""
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    queue_id = number % queues if queue_id is None else queue_id
    fields = _send_fields(topic, queue_id, properties, batch=False)
    return frame(RequestCode.SEND_MESSAGE_V2, fields, number, BODY)


def batch_frame(topic: str, number: int, *, messages: int, queues: int = 4) -> bytes:
    """Return a SEND_BATCH_MESSAGE of `messages` messages of 1 KiB."""
    first = number * messages
    items = [(0, BODY, f"UNIQ_KEY\x01{first + i:032X}\x02WAIT\x01true\x02".encode()) for i in range(messages)]
    fields = _send_fields(topic, number % queues, "WAIT\x01true\x02", batch=True)
    return frame(RequestCode.SEND_BATCH_MESSAGE, fields, number, encode_batch(items))


def pull_frame(topic: str, number: int, offset: int, *, queue_id: int) -> bytes:
    """Return a PULL_MESSAGE of 32 messages."""
    fields = {
        "consumerGroup": "GID_bench", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return frame(RequestCode.PULL_MESSAGE, fields, number)


def http_request(path: str, key: str, body: bytes, content_type: str = "application/json") -> bytes:
    """Return a POST request with an API key."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
