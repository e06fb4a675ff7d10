"""Requests that are built before a run, so that building them costs no time in the run."""

import json
import struct
import time
from collections.abc import Mapping

from gantry.model.batch import encode_batch
from gantry.model.messageid import decode_stored_id
from gantry.remoting.codes import RequestCode

BODY = bytes(range(32, 96)) * 16
assert len(BODY) == 1024
PRODUCERS = "PID_bench"
_BORN_AT_MS = 1_795_255_510_791
_WORDS = struct.Struct(">II")


def frame(code: int, ext_fields: dict[str, str], opaque: int, body: bytes = b"") -> bytes:
    """Return a request in the form of a Java client."""
    fields = {"code": code, "extFields": ext_fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    header = json.dumps(fields, separators=(",", ":")).encode()
    return _WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def _send_fields(
    topic: str, queue_id: int, properties: str, *, batch: bool, sys_flag: int = 0, born_at_ms: int = _BORN_AT_MS
) -> dict[str, str]:
    return {
        "a": PRODUCERS, "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(sys_flag),
        "g": str(born_at_ms), "h": "0", "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip


def send_frame(
    topic: str,
    number: int,
    *,
    queues: int = 4,
    queue_id: int | None = None,
    more: str = "",
    sys_flag: int = 0,
    born_at_ms: int = _BORN_AT_MS,
    body: bytes = BODY,
) -> bytes:
    """Return a SEND_MESSAGE_V2 of one message with a unique key, to `queue_id` or else to the queues in turn.

    `more` has further encoded properties.
    """
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02{more}"
    queue_id = number % queues if queue_id is None else queue_id
    fields = _send_fields(topic, queue_id, properties, batch=False, sys_flag=sys_flag, born_at_ms=born_at_ms)
    return frame(RequestCode.SEND_MESSAGE_V2, fields, number, body)


def half_frame(topic: str, number: int) -> bytes:
    """Return the send of a half message. It is born now, because the broker gives up on an old one."""
    more, now_ms = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02", int(time.time() * 1000)
    return send_frame(topic, number, more=more, sys_flag=4, born_at_ms=now_ms)


def commit_frame(number: int, half: Mapping[str, str]) -> bytes:
    """Return an END_TRANSACTION that commits; `half` has the fields of the reply to the half message."""
    fields = {
        "producerGroup": PRODUCERS, "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(stored_offset(half)), "commitOrRollback": "8", "fromTransactionCheck": "false",
        "msgId": half["transactionId"], "transactionId": half["transactionId"],
    }  # fmt: skip
    return frame(RequestCode.END_TRANSACTION, fields, number)


def send_back_frame(group: str, number: int, stored: Mapping[str, str]) -> bytes:
    """Return a CONSUMER_SEND_MSG_BACK; `stored` has the fields of the reply to the send."""
    fields = {
        "offset": str(stored_offset(stored)), "group": group, "delayLevel": "0", "originMsgId": stored["transactionId"],
        "originTopic": "", "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    return frame(RequestCode.CONSUMER_SEND_MSG_BACK, fields, number)


def stored_offset(stored: Mapping[str, str]) -> int:
    """Return the physical offset of a message, given the fields of the reply to its send."""
    return decode_stored_id(stored["msgId"])[1]


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
