"""A load over HTTP that writes a History: senders, readers and a committer on a whole stack.

A send names its queue, so that it is tried once. Its Idempotency-Key is the message's id, so that the message is known
even without an answer. The gateway's answer must state the outcome of the send. Without an answer, the outcome is only
certain if the connection was refused.
"""

import asyncio
import base64
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from gantry.client.errors import Outcome
from gantry.model.message import MessageQueue
from gantry.runtime.rng import Rng
from tests.fault.history import Found, History, Send

GROUP = "FAULT_READER"
SENDERS = 10
BODY_BYTES_MAX = 2_000
BATCH_MAX = 8
PAUSE_AFTER_FAILURE_S = 0.05
STOP_TIMEOUT_S = 40.0
PAGE = 500


class HttpLoad:
    """Sends to, reads and commits on `queues` from `start` to `stop`.

    Attributes:
        acknowledged: Number of messages answered `stored`, by broker.
    """

    def __init__(self, http: httpx.AsyncClient, history: History, rng: Rng, queues: Sequence[MessageQueue]) -> None:
        self._http = http
        self._history = history
        self._rng = rng
        self._queues = queues
        self._stopping = False
        self._senders: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._answered = asyncio.Condition()
        self.acknowledged: Counter[str] = Counter()

    def start(self) -> None:
        """Start the load."""
        self._senders = [asyncio.ensure_future(self._send(Rng(self._rng.below(1 << 60)))) for _ in range(SENDERS)]
        self._readers = [asyncio.ensure_future(self._read(queue)) for queue in self._queues]

    async def stop(self) -> None:
        """Stop sending, and wait until every pending send has ended."""
        self._stopping = True
        done, pending = await asyncio.wait(self._senders, timeout=STOP_TIMEOUT_S)
        for task in (*pending, *self._readers):
            task.cancel()
        await asyncio.gather(*pending, *self._readers, return_exceptions=True)
        for task in done:
            task.result()
        assert not pending, f"{len(pending)} sends without an end"

    async def reach(self, acknowledged: int, *, timeout_s: float = 60.0) -> None:
        """Wait until each broker has stored `more` further messages."""
        brokers = {queue.broker_name for queue in self._queues}
        goals = {name: self.acknowledged[name] + acknowledged for name in brokers}
        async with asyncio.timeout(timeout_s), self._answered:
            await self._answered.wait_for(lambda: all(self.acknowledged[name] >= goals[name] for name in goals))

    async def _send(self, rng: Rng) -> None:
        while not self._stopping:
            queue = rng.choice(self._queues)
            count = 1 + rng.below(BATCH_MAX) if rng.chance(0.2) else 1
            sends = [
                self._history.begin(
                    uuid.UUID(bytes=rng.bytes(16)).hex.upper(), queue, rng.bytes(rng.below(BODY_BYTES_MAX) + 1)
                )
                for _ in range(count)
            ]
            try:
                told = await (self._one(sends[0]) if count == 1 else self._batch(sends))
            except httpx.ConnectError:
                told = [{"outcome": "not_stored"}] * count
            except httpx.TransportError:
                told = [{"outcome": "unknown"}] * count
            await self._note(sends, told)

    async def _one(self, send: Send) -> list[dict[str, Any]]:
        assert send.queue is not None
        url, headers = f"/v1/topics/{send.queue.topic}/messages", {"Idempotency-Key": send.key}
        answer = await self._http.post(url, json=_message(send), headers=headers)
        return [_outcome(answer)]

    async def _batch(self, sends: Sequence[Send]) -> list[dict[str, Any]]:
        assert sends[0].queue is not None
        messages = [_message(send) | {"idempotency_key": send.key} for send in sends]
        answer = await self._http.post(f"/v1/topics/{sends[0].queue.topic}/messages:batch", json={"messages": messages})
        if answer.status_code != httpx.codes.OK:
            return [_outcome(answer)] * len(sends)
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    async def _note(self, sends: Sequence[Send], told: Sequence[dict[str, Any]]) -> None:
        failed = False
        for send, result in zip(sends, told, strict=True):
            outcome = Outcome(result["outcome"])
            if outcome is Outcome.STORED:
                assert send.queue is not None
                assert result["message_id"] == send.key
                assert (result["broker"], result["queue_id"]) == (send.queue.broker_name, send.queue.queue_id)
                self._history.stored(send, send.queue, int(result["queue_offset"]))
                self.acknowledged[send.queue.broker_name] += 1
            else:
                self._history.failed(send, outcome)
                failed = True
        if failed:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        async with self._answered:
            self._answered.notify_all()

    async def _read(self, queue: MessageQueue) -> None:
        offset = self._history.next_unseen(queue)
        while not self._stopping:
            try:
                found, offset = await read_page(self._http, queue, offset, wait="1s")
                for message in found:
                    self._history.saw(message)
                self._history.commits[queue].add(offset)
                place = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
                commit = {"offsets": [place | {"offset": str(offset)}]}
                (await self._http.put(f"/v1/groups/{GROUP}/offsets", json=commit)).raise_for_status()
            except httpx.HTTPError:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)


async def read_page(
    http: httpx.AsyncClient, queue: MessageQueue, offset: int, **params: str
) -> tuple[list[Found], int]:
    """Read once from a queue; return the messages and the next offset."""
    url = f"/v1/topics/{queue.topic}/queues/{queue.broker_name}/{queue.queue_id}/messages"
    answer = await http.get(url, params={"offset": str(offset), "limit": str(PAGE), **params})
    answer.raise_for_status()
    content = answer.json()
    found = [Found(queue, int(item["queue_offset"]), item["message_id"], _body(item)) for item in content["messages"]]
    return found, int(content["next_offset"])


async def read_all(http: httpx.AsyncClient, queues: Sequence[MessageQueue]) -> list[Found]:
    """Read all messages that the queues have now."""
    found: list[Found] = []
    for queue in queues:
        offset = -1
        next_offset = 0
        while next_offset != offset:
            offset = next_offset
            page, next_offset = await read_page(http, queue, offset)
            found += page
    return found


async def assert_commits(http: httpx.AsyncClient, history: History, topic: str) -> None:
    """Assert that each of a group's offsets is one that the group has committed, or missing."""
    answer = await http.get(f"/v1/groups/{GROUP}/offsets", params={"topic": topic})
    answer.raise_for_status()
    for item in answer.json()["items"]:
        queue, committed = MessageQueue(item["topic"], item["broker"], item["queue_id"]), item["committed_offset"]
        assert committed is None or int(committed) in history.commits[queue], item


def _message(send: Send) -> dict[str, Any]:
    assert send.queue is not None
    body = base64.b64encode(send.body).decode()
    return {"body": body, "encoding": "base64", "queue": {"broker": send.queue.broker_name, "id": send.queue.queue_id}}


def _body(item: dict[str, Any]) -> bytes:
    return base64.b64decode(item["body"]) if item["encoding"] == "base64" else item["body"].encode()


def _outcome(answer: httpx.Response) -> dict[str, Any]:
    content: dict[str, Any] = answer.json()
    assert "outcome" in content, f"{answer.status_code} to a send says no outcome: {answer.text}"
    assert content["outcome"] != "stored" or answer.status_code == httpx.codes.CREATED, answer.text
    return content
