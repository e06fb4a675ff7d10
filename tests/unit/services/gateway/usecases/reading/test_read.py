"""Reading queues: intact messages are returned, damaged ones are reported, and waiting ends."""

import asyncio
import zlib
from contextlib import contextmanager

import pytest

from gantry.model.address import Address
from gantry.model.errors import InvalidExpressionError
from gantry.model.message import CrcState, MessageQueue, StoredMessage
from gantry.model.record import encode_message
from gantry.model.sysflag import COMPRESSED
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.gateway.errors import TOO_MANY, ProblemError
from services.gateway.schemas.filters import SqlFilter, subscription_of
from services.gateway.usecases.consuming.offsets import GroupOffsets
from services.gateway.usecases.reading import arrivals
from services.gateway.usecases.reading.read import BODIES_BYTES_MAX, FETCHES_AT_ONCE, read_records
from services.gateway.views.offsets import group_offset_view
from services.gateway.views.page import page_view
from services.gateway.views.reads import queue_read_view, queue_view
from tests.support.scriptedpeer import ScriptedOutcome, in_turn, ok, refuse

QUEUE = MessageQueue("T", "a", 0)
HOST = Address("127.0.0.1", 10911)


def record(offset: int, body: bytes = b"body", *, tag: str = "AA", whole: bool = True, sys_flag: int = 0) -> bytes:
    message = StoredMessage(
        "T", 0, offset, offset * 200, 0, 0, 0, 0, 1_000, HOST, 2_000, HOST, 0, 0, body,
        {"UNIQ_KEY": f"ID{offset}", "TAGS": tag, "KEYS": "k1 k2", "origin": "EWR"}, 1, CrcState.OK,
    )  # fmt: skip
    return encode_message(message._replace(sys_flag=sys_flag), whole_record_crc=whole)


def pulled(request: RemotingCommand, code: int, next_offset: int, body: bytes = b"") -> ScriptedOutcome:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "9"}
    return RemotingCommand.response_to(request, code, ext=ext, body=body)


def found(*records: bytes, next_offset: int):
    return lambda request: pulled(request, ResponseCode.SUCCESS, next_offset, b"".join(records))


def nothing(request: RemotingCommand) -> ScriptedOutcome:
    return pulled(request, ResponseCode.PULL_NOT_FOUND, int(request.ext_fields["queueOffset"]))


@pytest.fixture
def answers(cluster, transport):
    def set_up(script) -> None:
        cluster.topic("T", "a")
        transport.at("a:10911", {RequestCode.PULL_MESSAGE: script})

    return set_up


class Caller:
    """Counts its waits, and may be refused one."""

    key_id = "key-1"
    takes_nothing = False
    has_gone = False

    def __init__(self, waits_max=9):
        self.waits_max = waits_max
        self.waits = 0
        self.turns = 0
        self.is_waiting = False

    def require_presence(self):
        if self.has_gone:
            raise LookupError("gone")

    def require_room(self):
        if self.takes_nothing:
            raise ProblemError(TOO_MANY, "unsent_bytes: enough")

    @contextmanager
    def waiting(self):
        if self.waits == self.waits_max:
            raise ProblemError(TOO_MANY, "long_polls: enough")
        self.waits += 1
        self.is_waiting = True
        yield
        self.is_waiting = False

    async def take_turn(self):
        self.turns += 1


async def read(reader, offset=0, *, binary=False, system=False, **options):
    """Return the answer to a read of the queue."""
    defaults = {"limit": 32, "wait_ms": 0, "wanted": "*", "caller": Caller()}
    async with reader.read(QUEUE, offset, **{**defaults, **options}) as found:
        return queue_read_view(found, binary=binary, system=system)


async def queues(reader, topic):
    """Return the items of the answer that lists a topic's queues."""
    answer = page_view(await reader.queues(topic), queue_view)
    assert answer["next_cursor"] is None
    return answer["items"]


async def test_messages_are_shown_in_the_format_of_the_contract(reader, answers):
    answers(found(record(3), record(4, b"\xff"), next_offset=5))
    answer = await read(reader, 3)
    assert (answer["status"], answer["next_offset"], answer["min_offset"], answer["max_offset"]) == (
        "FOUND",
        "5",
        "0",
        "9",
    )
    text, base64 = answer["messages"]
    assert text == {
        "message_id": "ID3",
        "stored_id": "7F00000100002A9F0000000000000258",
        "topic": "T",
        "broker": "a",
        "queue_id": 0,
        "queue_offset": "3",
        "body": "body",
        "encoding": "text",
        "tag": "AA",
        "keys": ("k1", "k2"),
        "properties": {"origin": "EWR"},
        "born_at": "1970-01-01T00:00:01.000Z",
        "stored_at": "1970-01-01T00:00:02.000Z",
        "born_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "size": text["size"],
    }
    assert (base64["body"], base64["encoding"]) == ("/w==", "base64")
    assert "damaged" not in answer


async def test_a_read_ends_when_its_decompressed_bodies_are_large(reader, answers):
    """A broker limits the bytes of its records, and a body can be a thousand times as large: 800 MB in one answer."""
    body = zlib.compress(bytes(BODIES_BYTES_MAX // 2))
    records = [record(offset, body, sys_flag=COMPRESSED) for offset in range(4)]
    damaged = bytearray(record(4))
    damaged[60] ^= 1
    answers(found(*records, bytes(damaged), next_offset=5))
    answer = await read(reader, binary=True)
    assert [(one["queue_offset"], len(one["body"])) for one in answer["messages"]] == [
        (0, BODIES_BYTES_MAX // 2),
        (1, BODIES_BYTES_MAX // 2),
    ]
    assert (answer["status"], answer["next_offset"]) == ("FOUND", 2)
    assert "damaged" not in answer, "the next read names it"


async def test_decompression_lets_other_tasks_go_on(reader, answers):
    body = zlib.compress(bytes(2 << 20))
    answers(found(*[record(offset, body, sys_flag=COMPRESSED) for offset in range(4)], next_offset=4))
    pulled = await reader._puller.pull(QUEUE, 0, max_messages=32, expression=subscription_of("*", "T", 1))
    work, turns, whole = reader._result(QUEUE, 0, pulled), 0, None
    while whole is None:
        try:
            work.send(None)
            turns += 1
        except StopIteration as ended:
            whole = ended.value
    assert (len(whole.messages), turns) == (4, 3), "one turn between two bodies"


async def test_binary_answers_have_bytes_and_integers(reader, answers):
    answers(found(record(3, b"\xff"), next_offset=4))
    answer = await read(reader, 3, binary=True, system=True)
    [message] = answer["messages"]
    assert (message["body"], message["encoding"], message["queue_offset"], answer["next_offset"]) == (
        b"\xff",
        "bytes",
        3,
        4,
    )
    assert message["system_properties"] == {"UNIQ_KEY": "ID3", "TAGS": "AA", "KEYS": "k1 k2"}


async def test_tags_are_compared_by_their_text_and_not_by_their_hash(reader, answers):
    answers(found(record(0, tag="BB"), record(1, tag="C#"), next_offset=2))  # Both tags hash to 2112.
    answer = await read(reader, wanted="BB || X")
    assert [message["queue_offset"] for message in answer["messages"]] == ["0"]
    answers(found(record(0, tag="C#"), next_offset=1))
    answer = await read(reader, wanted="BB")
    assert (answer["status"], answer["messages"], answer["next_offset"]) == ("NO_MATCHED_MSG", [], "1")


async def test_with_sql_everything_that_the_broker_returns_is_a_match(reader, answers, transport):
    answers(found(record(0, tag="BB"), record(3, tag="CC"), next_offset=5))
    answer = await read(reader, wanted=SqlFilter("weight > 5"))
    assert [message["queue_offset"] for message in answer["messages"]] == ["0", "3"]
    (pull,) = transport.sent(RequestCode.PULL_MESSAGE)
    assert (pull.ext_fields["expressionType"], pull.ext_fields["subscription"]) == ("SQL92", "weight > 5")
    with pytest.raises(InvalidExpressionError, match=r"filter/sql: at character 9: the expression ends too early"):
        await read(reader, wanted=SqlFilter("weight >"))


async def test_readers_with_the_same_text_as_tags_and_as_sql_do_not_share_a_wait(reader, answers, transport, clock):
    answers(at_last(found(record(0, tag="a"), next_offset=1), after_s=2, clock=clock))
    await asyncio.gather(*(read(reader, wait_ms=10_000, wanted=wanted) for wanted in ("a", SqlFilter("a"))))
    held = [request for request in transport.sent(RequestCode.PULL_MESSAGE) if held_ms(request)]
    assert {request.ext_fields["expressionType"] for request in held} == {"TAG", "SQL92"}


def pulls(transport):
    return [
        (int(request.ext_fields["suspendTimeoutMillis"]), int(request.ext_fields["maxMsgNums"]))
        for request in transport.sent(RequestCode.PULL_MESSAGE)
    ]


async def test_a_wait_ends_with_a_message(reader, answers, transport):
    answers(in_turn(nothing, nothing, found(record(0), next_offset=1), found(record(0), next_offset=1)))
    assert (await read(reader, wait_ms=30_000))["status"] == "FOUND"
    assert pulls(transport) == [(0, 32), (5_000, 1), (5_000, 1), (0, 32)]


async def test_a_wait_ends_at_its_timeout(reader, answers, transport, clock):
    transport.latency_s["a:10911"] = 4.0
    answers(nothing)
    started, caller = clock.monotonic_ms(), Caller()
    assert (await read(reader, wait_ms=6_000, caller=caller))["status"] == "NO_NEW_MSG"
    assert 6_000 <= clock.monotonic_ms() - started <= 12_000
    assert (caller.waits, caller.is_waiting) == (1, False)
    assert caller.turns == 1, "thousands of waits that began together end together"


async def test_a_reader_waits_only_at_the_end_and_if_allowed(reader, answers):
    caller = Caller(waits_max=0)
    answers(found(record(0), next_offset=1))
    assert (await read(reader, wait_ms=30_000, caller=caller))["status"] == "FOUND"
    answers(nothing)
    assert (await read(reader, caller=caller))["status"] == "NO_NEW_MSG"
    with pytest.raises(ProblemError, match="long_polls: enough"):
        await read(reader, wait_ms=30_000, caller=caller)


def at_last(script, *, after_s, clock):
    """Answer that there is no message, and from a moment on by a script."""
    begin_ms = clock.monotonic_ms()
    return lambda request: script(request) if clock.monotonic_ms() - begin_ms >= after_s * 1_000 else nothing(request)


async def test_readers_waiting_for_the_same_offset_share_one_pull_of_the_broker(reader, answers, transport, clock):
    transport.latency_s["a:10911"] = 0.1
    answers(at_last(found(record(0), next_offset=1), after_s=7, clock=clock))
    waiting = [asyncio.create_task(read(reader, wait_ms=30_000)) for _ in range(200)]
    other = asyncio.create_task(read(reader, wait_ms=30_000, wanted="AA"))
    assert {answer["status"] for answer in await asyncio.gather(*waiting, other)} == {"FOUND"}
    held = [request for request in transport.sent(RequestCode.PULL_MESSAGE) if held_ms(request)]
    assert {request.ext_fields["subscription"] for request in held} == {"*", "AA"}
    assert len(held) <= 2 * 70, "each takes 0.1 s"
    assert reader._arrivals.held_pulls == 0


def held_ms(request):
    return int(request.ext_fields["suspendTimeoutMillis"])


async def test_a_failure_reaches_every_waiting_reader(reader, answers, clock):
    answers(at_last(refuse(ResponseCode.NO_PERMISSION), after_s=3, clock=clock))
    waiting = [asyncio.create_task(read(reader, wait_ms=30_000)) for _ in range(3)]
    for task in waiting:
        with pytest.raises(Exception, match="NO_PERMISSION"):
            await task


async def test_the_number_of_queues_waited_on_is_limited(reader, answers, transport, monkeypatch):
    monkeypatch.setattr(arrivals, "HELD_PULLS_MAX", 2)
    transport.latency_s["a:10911"] = 1.0
    answers(nothing)
    waiting = [asyncio.create_task(read(reader, offset, wait_ms=20_000)) for offset in (0, 1)]
    await asyncio.sleep(3)
    with pytest.raises(ProblemError) as caught:
        await read(reader, 2, wait_ms=20_000)
    assert (caught.value.status, caught.value.retryable) == (503, True)
    assert (await read(reader, 1, wait_ms=1_000))["status"] == "NO_NEW_MSG", "other readers already wait on this queue"
    await asyncio.gather(*waiting)


async def test_a_result_counts_until_its_answer_is_written(reader, answers, transport):
    answers(found(record(0), next_offset=1))
    written = asyncio.Event()

    async def write_slowly():
        async with reader.read(QUEUE, 0, limit=32, wait_ms=0, wanted="*", caller=Caller()):
            await written.wait()

    slow = [asyncio.create_task(write_slowly()) for _ in range(FETCHES_AT_ONCE)]
    await asyncio.sleep(1)
    late = asyncio.create_task(read(reader))
    await asyncio.sleep(1)
    assert (len(transport.sent(RequestCode.PULL_MESSAGE)), late.done()) == (FETCHES_AT_ONCE, False)
    written.set()
    await asyncio.gather(*slow)
    assert (await late)["status"] == "FOUND"


async def test_an_illegal_offset_has_the_next_offset(reader, answers):
    answers(lambda request: pulled(request, ResponseCode.PULL_OFFSET_MOVED, 7))
    answer = await read(reader, 99, wait_ms=10_000)
    assert (answer["status"], answer["next_offset"]) == ("OFFSET_ILLEGAL", "7")


async def test_a_missing_queue_is_404(reader, answers, transport):
    answers(nothing)
    transport.at("a:10911", {RequestCode.GET_TOPIC_CONFIG: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    for queue, kind in (
        (MessageQueue("T", "a", 2), "unknown-queue"),
        (MessageQueue("T", "zz", 0), "unknown-broker"),
        (MessageQueue("NOPE", "a", 0), "unknown-topic"),
    ):
        with pytest.raises(ProblemError) as caught:
            await reader.check_queue(queue)
        assert (caught.value.kind.name, caught.value.status) == (kind, 404)


@pytest.mark.parametrize("at", [30, 60, 100, 130])
def test_a_damaged_record_is_reported_and_never_shown(at):
    damaged = bytearray(record(1))
    damaged[at] ^= 1
    body = record(0) + bytes(damaged) + record(2)
    records = read_records(memoryview(body), QUEUE, 0, 3)
    assert [message.queue_offset for message in records.messages] == [0, 2]
    assert [record.reason for record in records.damaged] == ["checksum: record_mismatch"]


def test_reading_continues_after_a_record_of_unknown_length_with_the_next_pull():
    damaged = bytearray(record(1))
    damaged[4] ^= 1  # The flipped bit is in the magic, so the length of the record is unknown.
    records = read_records(memoryview(record(0) + bytes(damaged) + record(2)), QUEUE, 0, 3)
    assert [message.queue_offset for message in records.messages] == [0]
    [damaged_record] = records.damaged
    assert (damaged_record.queue_offset, damaged_record.stored_id, records.next_offset) == (1, None, 2)


async def test_refusals_of_brokers_are_problems(reader, answers):
    answers(refuse(ResponseCode.NO_PERMISSION))
    with pytest.raises(Exception, match="NO_PERMISSION"):
        await read(reader)


async def test_nothing_is_pulled_for_a_caller_that_reads_no_answers(reader, answers, transport):
    """Answers were once made first and refused then, so that a repeated request cost the gateway more than the caller."""
    answers(found(record(3), next_offset=4))
    caller = Caller()
    caller.takes_nothing = True
    with pytest.raises(ProblemError) as caught:
        await read(reader, 3, caller=caller)
    assert caught.value.status == 429
    assert not transport.sent(RequestCode.PULL_MESSAGE)


async def test_nothing_is_pulled_for_a_disconnected_caller(reader, answers, transport):
    answers(found(record(3), next_offset=4))
    caller = Caller()
    caller.has_gone = True
    with pytest.raises(LookupError, match="gone"):
        await read(reader, 3, caller=caller)
    assert not transport.sent(RequestCode.PULL_MESSAGE)


def states(broker: str):
    queues = [QueueState(queue_id=number, max_offset=5, committed_offset=3) for number in range(2)]
    return lambda request: ok(request, body=QueueStates(broker_name=broker, queues=queues).encode())


@pytest.fixture
async def two_brokers(cluster, transport, reader):
    """A topic on two brokers, one of which name servers forget after its queues were seen."""
    cluster.topic("T", "a", "b")
    for broker in "ab":
        transport.at(f"{broker}:10911", {RequestCode.GANTRY_QUEUE_STATES: states(broker)})
    listed = await queues(reader, "T")
    assert [(item["broker"], item["max_offset"]) for item in listed] == [("a", "5")] * 2 + [("b", "5")] * 2
    cluster.topic("T", "a")
    del cluster.registered["b"]
    await asyncio.sleep(300)
    await reader.route("T", refresh=True)


async def test_queues_of_an_unreachable_broker_are_not_omitted(reader, two_brokers):
    items = await queues(reader, "T")
    shown = [(item["broker"], item["queue_id"], item["max_offset"], item["read"]) for item in items]
    assert shown == [("a", 0, "5", True), ("a", 1, "5", True), ("b", 0, None, None), ("b", 1, None, None)]


async def test_queues_of_an_unavailable_broker_come_from_postgres(reader, two_brokers, topics, monkeypatch):
    async def observed_homes(name):
        held = TopicConfig(name, 3, 2, Perm.READ | Perm.WRITE)
        return {"a": held, "b": held, "c": TopicConfig(name, 3, 2, Perm.READ)}

    monkeypatch.setattr(topics, "observed_homes", observed_homes)
    items = [item for item in await queues(reader, "T") if item["broker"] != "a"]
    shown = [(item["broker"], item["queue_id"], item["read"], item["write"]) for item in items]
    assert shown == [
        ("b", 0, True, True), ("b", 1, True, True), ("b", 2, True, False),
        ("c", 0, True, False), ("c", 1, True, False), ("c", 2, True, False),
    ]  # fmt: skip
    assert {item["max_offset"] for item in items} == {None}


async def test_offsets_of_a_group_on_an_unreachable_broker_are_not_omitted(reader, two_brokers, engine, brokers):
    offsets = GroupOffsets(engine, brokers, reader, None, None)
    found = [group_offset_view(offset) for offset in await offsets.of_topic("G", "T")]
    assert [(item["broker"], item["committed_offset"]) for item in found] == [
        ("a", "3"), ("a", "3"), ("b", None), ("b", None),
    ]  # fmt: skip
