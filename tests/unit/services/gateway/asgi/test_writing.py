"""Large answers: written in slices with the result of a single pass, and never above the size limit."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from services.gateway.asgi.writing import ANSWER_BYTES_MAX, SLICE_BYTES, AnswerWriter
from services.gateway.schemas.messages import ShownMessage
from services.gateway.views.messages import body_view

MIB = 1024 * 1024
# The largest size of a slice as JSON.
ESCAPED = 6

BODIES = {
    "control characters": b"\x01" * 4 * MIB,
    "no text": b"\xff" * 4 * MIB,
    "no text at its end": b"a" * (4 * MIB - 1) + b"\xff",
    "a character cut off": b"a" * (2 * SLICE_BYTES - 1) + "ü".encode()[:1],
    "characters across slices": b"a" + "ü€😀".encode() * 100_000,
    "quotes": b'"\\' * 200_000,
}


def view(body: bytes, number: int = 0, *, binary: bool = False) -> dict[str, Any]:
    """A message as message_view shows it with `leaves_large`."""
    shown: tuple[Any, str] = (body, "bytes" if binary else "")
    if not binary and len(body) <= SLICE_BYTES:
        shown = body_view(body)
    return {"message_id": f"ID{number}", "body": shown[0], "encoding": shown[1], "keys": ("k",), "size": len(body)}


def content(answer: Any) -> bytes:
    joined = b"".join([answer.body, *answer.remaining])
    assert len(joined) == answer.size
    return joined


async def turns_while(task: asyncio.Future[Any]) -> int:
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


@pytest.mark.parametrize("name", BODIES)
async def test_a_large_message_is_written_in_slices(name):
    body = BODIES[name]
    task = asyncio.ensure_future(AnswerWriter().message(view(body), "key-1", binary=False))
    turns = await turns_while(task)
    answer = task.result()
    assert turns >= len(body) // SLICE_BYTES
    assert max(map(len, [answer.body, *answer.remaining])) <= ESCAPED * SLICE_BYTES
    shown = json.loads(content(answer))
    assert (shown["body"], shown["encoding"]) == body_view(body)
    assert (shown["message_id"], shown["keys"]) == ("ID0", ["k"])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [10] * 3, [4 * MIB], [10, 4 * MIB, 100_000, 10], [1_000] * 1_000])
async def test_a_read_of_a_queue_shows_all_pulled_messages(sizes, binary):
    bodies = [b"\x01" * size for size in sizes]
    views = [view(body, number, binary=binary) for number, body in enumerate(bodies)]
    answer = await AnswerWriter().queue({"status": "FOUND", "messages": views, "next_offset": "9"}, "k", binary=binary)
    shown = msgspec.msgpack.decode(content(answer)) if binary else json.loads(content(answer))
    assert (shown["status"], shown["next_offset"]) == ("FOUND", "9")
    assert [message["message_id"] for message in shown["messages"]] == [f"ID{number}" for number in range(len(sizes))]
    assert [message["body"] for message in shown["messages"]] == [body if binary else body.decode() for body in bodies]


@pytest.mark.parametrize("binary", [False, True])
async def test_a_search_returns_the_messages_that_fit_and_is_flagged(binary):
    made = []

    def views():
        for number in range(100):
            made.append(number)
            yield view(b"a" * MIB, number, binary=binary)

    answer = await AnswerWriter().page({"truncated": False, "next_cursor": None}, views(), "k", binary=binary)
    shown = msgspec.msgpack.decode(content(answer)) if binary else json.loads(content(answer))
    assert [message["message_id"] for message in shown["items"]] == [f"ID{number}" for number in range(7)]
    assert shown["truncated"] is True
    assert answer.size <= ANSWER_BYTES_MAX
    assert len(made) == 8, "only one message too many is encoded"


async def test_one_message_is_shown_whatever_its_size():
    views = [view(b"\x01" * 4 * MIB, number) for number in range(3)]
    answer = await AnswerWriter().page({"truncated": False}, views, "k", binary=False)
    shown = json.loads(content(answer))
    assert ([message["message_id"] for message in shown["items"]], shown["truncated"]) == (["ID0"], True)
    assert shown["items"][0]["body"] == "\x01" * 4 * MIB


async def test_many_small_messages_are_written_in_slices_too():
    views = [view(b"\x01" * SLICE_BYTES, number) for number in range(40)]
    task = asyncio.ensure_future(AnswerWriter().page({"truncated": False}, views, "k", binary=False))
    assert await turns_while(task) >= 20
    shown = json.loads(content(task.result()))
    assert shown["truncated"] is True
    assert 20 < len(shown["items"]) < 40


async def test_few_messages_are_written_at_once_and_keys_take_turns():
    writer = AnswerWriter()
    many = [asyncio.ensure_future(writer.message(view(b"x" * MIB), "key-a", binary=False)) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(writer.message(view(b"x" * MIB), "key-b", binary=False))
    await other
    assert sum(task.done() for task in many) <= 4
    small = asyncio.ensure_future(writer.page({}, [view(b"x")], "key-c", binary=False))
    await asyncio.sleep(0)
    assert small.done(), "a small answer does not wait"
    for task in many:
        assert json.loads(content(await task))["body"] == "x" * MIB


async def test_a_small_record_with_a_large_body_is_written_as_text():
    large = view(b"x" * (2 * SLICE_BYTES)) | {"size": 200}  # It is compressed in the store.
    answer = await AnswerWriter().queue({"messages": [large]}, "key-1", binary=False)
    (message,) = json.loads(content(answer))["messages"]
    assert (message["body"], message["encoding"]) == ("x" * 2 * SLICE_BYTES, "text")


def shown(body: bytes, *, binary: bool = False) -> ShownMessage:
    """A message of a pull."""
    body_fields = body, "bytes"
    if not binary and len(body) <= SLICE_BYTES:
        body_fields = body_view(body)
    return ShownMessage(
        "ID", "S", "T", "broker-a", 3, "7", *body_fields, None, ("k",), {"p": "q"}, "b", "s", "h", 0, len(body), "R"
    )


@pytest.mark.parametrize("fields", [{}, {"damaged": [1]}])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [10] * 3, [MIB], [10, MIB, 100_000, 10], [1_000] * 256])
async def test_a_pull_of_a_group_shows_all_messages(sizes, binary, fields):
    bodies = [b"\x01" * size for size in sizes]
    messages = [shown(body, binary=binary) for body in bodies]
    answer = await AnswerWriter().pulled(dict(fields), messages, "key-1", binary=binary)
    decoded = msgspec.msgpack.decode(content(answer)) if binary else json.loads(content(answer))
    views = decoded.pop("messages")
    assert decoded == fields
    assert [view["body"] for view in views] == [body if binary else body.decode() for body in bodies]
    assert {(view["receipt"], view["queue_id"], *view["keys"]) for view in views} <= {("R", 3, "k")}


@pytest.mark.parametrize("name", BODIES)
async def test_a_large_body_in_a_pull_is_written_in_slices(name):
    body = BODIES[name]
    task = asyncio.ensure_future(AnswerWriter().pulled({}, [shown(b"a"), shown(body)], "key-1", binary=False))
    assert await turns_while(task) >= len(body) // SLICE_BYTES
    views = json.loads(content(task.result()))["messages"]
    assert [(view["body"], view["encoding"]) for view in views] == [("a", "text"), body_view(body)]
