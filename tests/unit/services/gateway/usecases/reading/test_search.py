"""Searches of a topic: every message once, the oldest first, whatever the pages, and queues that can't be read are named."""

import random
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest

from gantry.client.consumer.pull import PullStatus
from gantry.client.errors import BrokerUnavailableError
from gantry.model.address import Address
from gantry.model.errors import InvalidExpressionError, InvalidValueError
from gantry.model.message import CrcState, MessageQueue, StoredMessage
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.errors import UNKNOWN_TOPIC, ProblemError
from services.gateway.schemas.filters import SqlFilter
from services.gateway.usecases.reading import search as search_module
from services.gateway.usecases.reading.lanes import decode_positions, encode_positions
from services.gateway.usecases.reading.messages import ReadMessage
from services.gateway.usecases.reading.results import QueueRead
from services.gateway.usecases.reading.search import Search, TopicSearch
from services.gateway.views.reads import search_view

HOST = Address("127.0.0.1", 10911)
SCAN = 20
"""A pull of this reader looks at so many offsets, as a broker's pull with a filter has a limit."""


class Caller:
    key_id = "key-1"
    is_gone = False

    def require_presence(self):
        if self.is_gone:
            raise LookupError("gone")

    def require_room(self):
        pass


class Queues:
    """Queues in memory, with the interface of a QueueReader. A message is (store time, tag, body)."""

    def __init__(self, messages):
        self.messages = messages
        self.begins = defaultdict(int)
        self.committed = dict.fromkeys(messages)
        self.silent = set()
        self.failing = {}
        self.pulls = 0

    async def states(self, topic, group):
        return [
            (
                MessageQueue(topic, *key),
                None
                if key[0] in self.silent
                else QueueState(
                    queue_id=key[1],
                    min_offset=self.begins[key],
                    max_offset=len(messages),
                    committed_offset=None if group is None else self.committed[key],
                ),
            )
            for key, messages in sorted(self.messages.items())
        ]

    async def find_offset(self, queue, at_ms, boundary):
        assert boundary == "lower"
        times = [at for at, _, _ in self.messages[queue.broker_name, queue.queue_id]]
        return sum(at < at_ms for at in times)

    @asynccontextmanager
    async def read(self, queue, offset, *, limit, wait_ms, wanted, caller):
        assert wait_ms == 0
        self.pulls += 1
        key = queue.broker_name, queue.queue_id
        if key in self.failing:
            raise self.failing[key]
        messages, begin = self.messages[key], self.begins[key]
        if offset < begin:
            yield QueueRead(PullStatus.OFFSET_ILLEGAL, [], [], begin, begin, len(messages))
            return
        found, at = [], offset
        while at < min(offset + SCAN, len(messages)) and len(found) < limit:
            if wanted in ("*", messages[at][1]):
                found.append(message(queue, at, *messages[at]))
            at += 1
        yield QueueRead(PullStatus.FOUND, found, [], at, begin, len(messages))


def message(queue, offset, stored_at_ms, tag, body):
    record = StoredMessage(
        queue.topic, queue.queue_id, offset, offset * 200, 0, 0, 0, 0, 1_000, HOST, stored_at_ms, HOST, 0, 0, body,
        {"TAGS": tag}, 1, CrcState.OK,
    )  # fmt: skip
    return ReadMessage(record, queue.broker_name, body)


def even(count, *, first=1_000, step=10, tag="A", body=b""):
    return [(first + index * step, tag, body) for index in range(count)]


async def pages(queues, clock, wanted, *, limit=10, pages_max=10_000):
    """Return all pages of a search."""
    search, cursor, found = TopicSearch(queues, clock=clock), None, []
    while len(found) < pages_max:
        async with search.page(wanted, cursor, limit=limit, caller=Caller()) as page:
            found.append(page)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the pages have no end")


def places(found):
    return [(one.record.stored_at_ms, one.broker, one.record.queue_id, one.record.queue_offset) for page in found
            for one in page.messages]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
async def test_every_message_that_is_wanted_comes_once_and_the_oldest_first(clock, monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(search_module, "SCANNED_MAX", rng.choice([1, 50, 10_000]))
    monkeypatch.setattr(search_module, "_LANES_BYTES_MAX", rng.choice([1, 500, 10**9]))
    monkeypatch.setattr(search_module, "PAGE_BYTES_MAX", rng.choice([30, 10**9]))
    messages = {}
    for broker in "abc"[: rng.randint(1, 3)]:
        for queue_id in range(rng.randint(1, 4)):
            times = sorted(rng.randint(0, 300) for _ in range(rng.choice([0, 3, 60, 200])))
            messages[broker, queue_id] = [(at, rng.choice("AAAB"), b"x" * rng.randint(0, 30)) for at in times]
    queues = Queues(messages)
    from_ms, to_ms = rng.choice([None, 50]), rng.choice([None, 250])
    tag = rng.choice(["*", "A", "B"])
    for key, queue in messages.items():
        queues.begins[key] = rng.randint(0, len(queue) // 3)
        queues.committed[key] = rng.randint(0, len(queue))
    group = rng.choice([None, "G"])
    wanted = Search("T", tag, from_ms, to_ms, group)
    expected = sorted(
        (at, *key, offset)
        for key, queue in messages.items()
        for offset, (at, its_tag, _) in enumerate(queue)
        if offset >= queues.begins[key]
        and (group is None or offset >= queues.committed[key])
        and (tag in ("*", its_tag))
        and (from_ms is None or at >= from_ms)
        and (to_ms is None or at < to_ms)
    )
    found = await pages(queues, clock, wanted, limit=rng.choice([1, 7, 1_000]))
    assert places(found) == expected
    assert not any(page.missing for page in found)
    assert [page.is_truncated for page in found] == [True] * (len(found) - 1) + [False]


async def test_a_page_is_short_if_the_search_has_looked_at_enough_and_the_next_goes_on(clock, monkeypatch):
    monkeypatch.setattr(search_module, "SCANNED_MAX", 100)
    queues = Queues({("a", 0): [*even(1_000), *even(1, first=20_000, tag="B")]})
    found = await pages(queues, clock, Search("T", "B"))
    assert [len(page.messages) for page in found] == [0] * (len(found) - 1) + [1]
    assert max(page.scanned for page in found) <= 100 + SCAN
    assert sum(page.scanned for page in found) == 1_001


async def test_time_ends_a_page_and_each_page_makes_progress(clock, monkeypatch):
    monkeypatch.setattr(search_module, "EFFORT_MS", 0)
    queues = Queues({("a", queue_id): [*even(100), *even(1, first=9_000, tag="B")] for queue_id in range(20)})
    found = await pages(queues, clock, Search("T", "B"), limit=1_000, pages_max=40)
    assert len(places(found)) == 20


async def test_a_message_that_arrives_meanwhile_does_not_disturb_the_pages(clock):
    queues = Queues({("a", 0): even(30), ("a", 1): even(30, first=1_005)})
    search = TopicSearch(queues, clock=clock)
    async with search.page(Search("T", from_ms=0), None, limit=20, caller=Caller()) as first:
        pass
    queues.messages["a", 0] += even(5, first=5_000)
    queues.messages["b", 0] = even(3, first=6_000)
    async with search.page(Search("T", from_ms=0), first.next_cursor, limit=100, caller=Caller()) as second:
        pass
    assert len(places([first, second])) == len(set(places([first, second]))) == 68


async def test_queues_that_cannot_be_read_are_named_and_the_others_are_searched(clock):
    queues = Queues({("a", 0): even(3), ("b", 0): even(3), ("b", 1): even(3), ("c", 0): even(3)})
    queues.silent = {"a"}
    queues.committed = {("b", 0): 1, ("b", 1): None, ("c", 0): 0}
    queues.failing["c", 0] = BrokerUnavailableError("c")
    [page] = await pages(queues, clock, Search("T", group="G"))
    assert [offset for *_, offset in places([page])] == [1, 2]
    assert search_view(page, binary=False) == {
        "next_cursor": None,
        "scanned": "2",
        "truncated": True,
        "missing": [
            {"broker": "a", "queue_id": 0, "reason": "its broker does not answer"},
            {
                "broker": "b",
                "queue_id": 1,
                "reason": "group G has never committed an offset here, so it is unknown what it has consumed",
            },
            {"broker": "c", "queue_id": 0, "reason": "broker c: no master of it is registered just now"},
        ],
    }


async def test_a_queue_that_comes_back_goes_on_where_it_was(clock):
    queues = Queues({("a", 0): even(10), ("b", 0): even(10, first=1_005)})
    search, wanted = TopicSearch(queues, clock=clock), Search("T", from_ms=0)
    async with search.page(wanted, None, limit=6, caller=Caller()) as first:
        pass
    queues.silent = {"b"}
    async with search.page(wanted, first.next_cursor, limit=4, caller=Caller()) as second:
        pass
    queues.silent = set()
    async with search.page(wanted, second.next_cursor, limit=100, caller=Caller()) as third:
        pass
    assert [page.is_truncated for page in (first, second, third)] == [True, True, False]
    assert sorted(places([first, second, third])) == sorted(places(await pages(queues, clock, wanted)))


async def test_an_error_of_the_search_itself_is_an_error(clock):
    queues = Queues({("a", 0): even(3)})
    queues.failing["a", 0] = ProblemError(UNKNOWN_TOPIC, "topic: it was deleted")
    with pytest.raises(ProblemError, match="it was deleted"):
        await pages(queues, clock, Search("T", from_ms=0))
    with pytest.raises(InvalidExpressionError, match="filter/sql: at character"):
        await pages(queues, clock, Search("T", SqlFilter("a >")))


async def test_nothing_is_read_for_a_caller_that_has_gone(clock):
    queues, caller = Queues({("a", 0): even(3)}), Caller()
    caller.is_gone = True
    with pytest.raises(LookupError):
        async with TopicSearch(queues, clock=clock).page(Search("T", from_ms=0), None, limit=5, caller=caller):
            pass
    assert not queues.pulls


async def test_a_topic_with_too_many_queues_is_refused(clock, monkeypatch):
    monkeypatch.setattr(search_module, "QUEUES_MAX", 2)
    queues = Queues({("a", queue_id): [] for queue_id in range(3)})
    with pytest.raises(ProblemError, match="topic: 'T' has 3 queues, and a search reads at most 2"):
        await pages(queues, clock, Search("T", from_ms=0))


@pytest.mark.parametrize("other", [Search("U", from_ms=0), Search("T", from_ms=1), Search("T", "A", 0)])
async def test_a_cursor_of_another_search_is_refused(clock, other):
    search = TopicSearch(Queues({("a", 0): even(30)}), clock=clock)
    async with search.page(Search("T", from_ms=0), None, limit=5, caller=Caller()) as page:
        pass
    with pytest.raises(InvalidValueError, match=r"cursor: .*is not a cursor of this search"):
        async with search.page(other, page.next_cursor, limit=5, caller=Caller()):
            pass


def test_positions_survive_their_text():
    positions = {("a", 0): 5, ("a", 3): 0, ("b-1%x", 1): 2**63 - 1}
    assert decode_positions(encode_positions(positions)) == positions
    for text in ("", "a", "a:", "a:x", "a:1,", "a:01", "b:1;a:1", "a:²", "a:" + "9" * 20):
        with pytest.raises(InvalidValueError):
            decode_positions(text)
