"""Sending: each message has its own outcome, independent of the others."""

import asyncio
import functools
import json

import msgspec
import pytest

from gantry.model.batch import decode_batch
from gantry.model.errors import InvalidNameError
from gantry.model.message import decode_properties
from gantry.model.route import BrokerData
from gantry.model.topic import DUPLICATE_WINDOW, TopicConfig
from gantry.remoting import errors as wire
from gantry.remoting.bodies.config import encode_topic_config
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.gateway.errors import ProblemError
from services.gateway.schemas.outgoing import read_items, read_message
from services.gateway.turns import Turns
from services.gateway.usecases.configs.presence import RowState
from services.gateway.usecases.sending.batchcall import FREE_MESSAGES_MAX
from services.gateway.views.sends import outcome_counts, result_views, single_view
from tests.support.scriptedpeer import Script, ScriptedOutcome, ok, refuse

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def store(request: RemotingCommand) -> ScriptedOutcome:
    count = len(decode_batch(request.body_bytes)) if request.code == BATCH else 1
    ids = ",".join(f"{number:032X}" for number in range(count))
    return ok(request, ext={"msgId": ids, "queueId": request.ext_fields["e"], "queueOffset": "7"})


@pytest.fixture
def two_brokers(cluster, transport):
    def set_up(a: Script = store, b: Script = store) -> None:
        cluster.topic("T", "a", "b")
        for name, script in (("a", a), ("b", b)):
            transport.at(f"{name}:10911", {SEND: script, BATCH: script})

    return set_up


def items(*texts: str):
    return read_items([text.encode() for text in texts], packed=False)


def outcomes(results):
    return [result["outcome"] for result in results]


async def send_one(sending, message):
    """Send a message and return its result as answers show it."""
    return msgspec.to_builtins(single_view(await sending.send_one("T", message), "T"))


async def send_many(sending, topic, items, request_id, *, binary=False):
    """Send a batch whose caller has the loop for itself, and return its results as answers show them."""
    report = await sending.send_many(topic, items, turn=functools.partial(Turns().take, "key-1"))
    views = msgspec.to_builtins(result_views(report, request_id, binary=binary))
    counts = {name: outcomes(views).count(name) for name in ("stored", "not_stored", "unknown")}
    assert outcome_counts(report) == counts
    return views


async def test_a_stored_message_has_its_place(sending, two_brokers, metrics):
    two_brokers()
    result = await send_one(sending, read_message(b'{"body": "b", "queue": {"broker": "b", "id": 1}}'))
    assert result == {
        "outcome": "stored",
        "status": "SEND_OK",
        "message_id": result["message_id"],
        "stored_id": "0" * 32,
        "broker": "b",
        "queue_id": 1,
        "queue_offset": "7",
        "topic": "T",
    }
    assert metrics.sent == {"stored": 1, "not_stored": 0, "unknown": 0}


async def test_an_unknown_topic_names_the_call_that_creates_it(sending, cluster, transport):
    cluster.registered = {"a": BrokerData("C", "a", {0: "a:10911"})}
    transport.at("a:10911", {RequestCode.GET_TOPIC_CONFIG: refuse(ResponseCode.TOPIC_NOT_EXIST)})
    for sends in (
        sending.send_one("NOPE", read_message(b'{"body": "b"}')),
        send_many(sending, "NOPE", items("{}"), "r"),
    ):
        with pytest.raises(ProblemError) as caught:
            await sends
        problem = caught.value
        assert (problem.status, problem.outcome) == (404, "not_stored")
        assert "PUT /v1/topics/NOPE" in problem.detail


async def test_a_topic_is_not_unknown_while_no_broker_is_registered(sending, cluster):
    cluster.registered = {}
    with pytest.raises(ProblemError) as caught:
        await sending.send_one("T", read_message(b'{"body": "b"}'))
    assert (caught.value.kind.name, caught.value.outcome) == ("broker-unavailable", "not_stored")


async def test_without_a_name_server_nothing_is_stored(sending):
    with pytest.raises(ProblemError) as caught:
        await sending.send_one("T", read_message(b'{"body": "b"}'))
    assert (caught.value.kind.name, caught.value.outcome) == ("namesrv-unavailable", "not_stored")


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x", "SELF_TEST_TOPIC"]
)
def test_system_topics_accept_no_messages(sending, topic):
    with pytest.raises(ProblemError) as caught:
        sending.check_topic(topic)
    assert (caught.value.status, caught.value.outcome) == (403, "not_stored")
    sending.check_topic("RMQ_SYS_TRACE_TOPIC")
    for bad in ("", "a b", "x" * 128):
        with pytest.raises(InvalidNameError):
            sending.check_topic(bad)


@pytest.mark.parametrize(
    ("script", "status", "outcome", "retryable"),
    [
        (refuse(ResponseCode.SYSTEM_BUSY), 503, "not_stored", True),
        (refuse(ResponseCode.MESSAGE_ILLEGAL), 400, "not_stored", False),
        (refuse(ResponseCode.NO_PERMISSION), 403, "not_stored", False),
        (refuse(ResponseCode.NO_PERMISSION, "the broker[a:1] sending message is forbidden"), 503, "not_stored", True),
        (refuse(ResponseCode.SERVICE_NOT_AVAILABLE), 503, "not_stored", True),
        (refuse(ResponseCode.SYSTEM_ERROR), 504, "unknown", True),
        (lambda request: None, 504, "unknown", True),
        (lambda request: wire.ConnectionLostError("a", "gone", sent=True), 504, "unknown", True),
        (lambda request: wire.ConnectionLostError("a", "gone", sent=False), 503, "not_stored", True),
    ],
)
async def test_answers_of_brokers_become_outcomes(sending, two_brokers, metrics, script, status, outcome, retryable):
    two_brokers(script, script)
    with pytest.raises(ProblemError) as caught:
        await sending.send_one("T", read_message(b'{"body": "b"}'))
    problem = caught.value
    assert (problem.status, problem.outcome, problem.retryable) == (status, outcome, retryable)
    assert (problem.message_id is not None) == (outcome == "unknown")
    assert metrics.sent[outcome] == 1


async def test_less_durable_than_requested_is_unknown_with_an_offset(sending, two_brokers):
    def late(request: RemotingCommand) -> ScriptedOutcome:
        answer = store(request)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    two_brokers(late, late)
    result = await send_one(sending, read_message(b'{"body": "b"}'))
    assert (result["outcome"], result["status"], result["queue_offset"]) == ("unknown", "FLUSH_DISK_TIMEOUT", "7")


async def test_a_one_way_send_is_handed_over_and_unknown(sending, two_brokers, transport):
    two_brokers()
    result = await send_one(sending, read_message(b'{"body": "b", "one_way": true}'))
    assert set(result) == {"outcome", "message_id", "topic"}
    assert result["outcome"] == "unknown"
    [request] = transport.sent(SEND)
    assert request.is_one_way


async def test_a_batch_is_one_request_and_bad_items_do_not_affect_it(sending, two_brokers, transport):
    two_brokers()
    batch = items(
        '{"body": "one"}', '{"bdy": 1}', '{"body": ""}', '{"body": "two", "delay": "soon"}', '{"body": "three"}'
    )
    results = await send_many(sending, "T", batch, "req-1")
    assert outcomes(results) == ["stored", "not_stored", "not_stored", "not_stored", "stored"]
    problems = [result["problem"] for result in results if "problem" in result]
    assert [problem["field"] for problem in problems] == ["/messages/1/bdy", "/messages/2/body", "/messages/3/delay"]
    assert [problem["status"] for problem in problems] == [400, 400, 400]
    assert {problem["request_id"] for problem in problems} == {"req-1"}
    [request] = transport.sent(BATCH)
    assert [item.body for item in decode_batch(request.body_bytes)] == [b"one", b"three"]


async def test_a_delayed_message_of_a_batch_has_a_request_of_its_own(sending, two_brokers, transport):
    two_brokers()
    batch = items('{"body": "one"}', '{"body": "later", "delay": "1s"}', '{"body": "three"}')
    results = await send_many(sending, "T", batch, "req-1")
    assert outcomes(results) == ["stored", "stored", "stored"]
    assert [("handle" in result, "deliver_at" in result) for result in results] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    [request] = transport.sent(BATCH)
    assert [item.body for item in decode_batch(request.body_bytes)] == [b"one", b"three"]
    [request] = transport.sent(SEND)
    assert (request.body, "TIMER_DELAY_MS\x011000\x02" in request.ext_fields["i"]) == (b"later", True)


async def test_messages_of_one_ordering_key_go_to_one_queue_in_order(sending, two_brokers, transport, engine):
    two_brokers()
    batch = items(*(f'{{"body": "{number}", "ordering_key": "k{number % 3}"}}' for number in range(12)))
    results = await send_many(sending, "T", batch, "r", binary=True)
    info = engine.cached_publish_info("T")
    for number, result in enumerate(results):
        queue = info.queue_for_key(f"k{number % 3}")
        assert (result["broker"], result["queue_id"]) == (queue.broker_name, queue.queue_id)
        assert isinstance(result["queue_offset"], int)
    for request in transport.sent(BATCH):
        bodies = [int(item.body) for item in decode_batch(request.body_bytes)]
        assert bodies == sorted(bodies)


async def test_messages_of_an_ordering_key_do_not_move_to_another_broker(sending, two_brokers, transport, engine):
    two_brokers()
    await engine.publish_info("T")
    transport.down("a:10911")
    batch = items(*(f'{{"body": "x", "ordering_key": "k{number}"}}' for number in range(12)))
    results = await send_many(sending, "T", batch, "r")
    info = engine.cached_publish_info("T")
    for number, result in enumerate(results):
        is_up = info.queue_for_key(f"k{number}").broker_name == "b"
        assert result["outcome"] == ("stored" if is_up else "not_stored")
        if not is_up:
            assert result["problem"]["retryable"]
    assert len(set(outcomes(results))) == 2


async def test_messages_after_a_frame_of_unknown_outcome_are_held_back(sending, two_brokers):
    two_brokers(refuse(ResponseCode.SYSTEM_BUSY))
    large = '{"body": "%s", "queue": {"broker": "a", "id": 0}}' % ("x" * 1_500_000)
    results = await send_many(sending, "T", items(large, large, large), "r")
    assert outcomes(results) == ["not_stored"] * 3
    assert "earlier message" in results[2]["problem"]["detail"]


async def test_a_frame_refused_for_one_message_is_sent_message_by_message(sending, two_brokers, transport):
    def picky(request: RemotingCommand) -> ScriptedOutcome:
        if b"bad" in request.body_bytes:
            return refuse(ResponseCode.MESSAGE_ILLEGAL)(request)
        return store(request)

    two_brokers(picky, picky)
    results = await send_many(sending, "T", items('{"body": "a"}', '{"body": "bad"}', '{"body": "c"}'), "r")
    assert outcomes(results) == ["stored", "not_stored", "stored"]
    assert len(transport.sent(SEND)) == 3


async def test_a_large_batch_goes_in_several_requests(sending, two_brokers, transport):
    two_brokers()
    results = await send_many(sending, "T", items(*['{"body": "%s"}' % ("x" * 900_000)] * 5), "r")
    assert outcomes(results) == ["stored"] * 5
    assert [len(decode_batch(request.body_bytes)) for request in transport.sent(BATCH)] == [2, 2]
    assert len(transport.sent(SEND)) == 1


async def test_unordered_messages_are_sent_in_small_requests_and_ordered_ones_in_one(sending, two_brokers, transport):
    """A broker stores a request in one step: a thousand messages blocked it for 10 ms and more."""
    two_brokers()
    free = ['{"body": "x"}'] * (2 * FREE_MESSAGES_MAX + 1)
    ordered = ['{"body": "x", "ordering_key": "k"}'] * (FREE_MESSAGES_MAX + 1)
    results = await send_many(sending, "T", items(*free, *ordered), "r")
    assert outcomes(results) == ["stored"] * len([*free, *ordered])
    sizes = sorted(len(decode_batch(request.body_bytes)) for request in transport.sent(BATCH))
    assert sizes == [FREE_MESSAGES_MAX, FREE_MESSAGES_MAX, FREE_MESSAGES_MAX + 1]
    assert len(transport.sent(SEND)) == 1


def naming(broker: str, queue_id: int) -> str:
    return json.dumps({"body": "x", "queue": {"broker": broker, "id": queue_id}})


@pytest.mark.parametrize("named", ["a", "gone-{}"])
async def test_all_unknown_queues_of_a_batch_share_one_search(
    sending, two_brokers, transport, topics, monkeypatch, named
):
    two_brokers()
    await sending.send_one("T", read_message(b'{"body": "b"}'))
    rows = 0

    async def find_row(name: str) -> tuple[RowState, None]:
        nonlocal rows
        rows += 1
        return RowState.NONE, None

    monkeypatch.setattr(topics, "find_row", find_row)
    asked = len(transport.requests)
    unknown = [naming(named.format(each), 9 + each) for each in range(50)]
    results = await send_many(sending, "T", items(*unknown, '{"body": "x"}'), "r")
    assert outcomes(results) == ["not_stored"] * 50 + ["stored"]
    assert [each["problem"]["field"] for each in results[:50]] == [f"/messages/{each}/queue" for each in range(50)]
    assert rows <= 1
    assert len(transport.requests) - asked <= 4


async def test_a_failing_search_for_queues_is_made_once(sending, two_brokers, transport):
    two_brokers()
    await sending.send_one("T", read_message(b'{"body": "b"}'))
    transport.latency_s["ns:1"] = 1_000.0
    unknown = [naming("a", 9 + each) for each in range(50)]
    began = asyncio.get_running_loop().time()
    results = await send_many(sending, "T", items(*unknown, '{"body": "x"}'), "r")
    assert outcomes(results) == ["not_stored"] * 50 + ["stored"]
    assert {each["problem"]["status"] for each in results[:50]} == {503}
    assert asyncio.get_running_loop().time() - began < 10


async def test_an_unknown_queue_is_refused_after_a_second_search(sending, two_brokers, cluster):
    two_brokers()
    message = read_message(b'{"body": "b", "queue": {"broker": "b", "id": 5}}')
    with pytest.raises(ProblemError) as caught:
        await sending.send_one("T", message)
    assert (caught.value.kind.name, caught.value.outcome) == ("unknown-queue", "not_stored")
    cluster.topic("T", "a", "b", queues=8)
    assert (await sending.send_one("T", message)).queue_id == 5


async def test_idempotency_keys_are_message_ids_on_the_wire(sending, two_brokers, transport):
    two_brokers()
    key = "0123456789ABCDEF0123456789ABCDEF"
    [result] = await send_many(sending, "T", items(f'{{"body": "b", "idempotency_key": "{key}"}}'), "r")
    [request] = transport.sent(SEND)
    assert result["message_id"] == key
    assert decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"] == key


async def test_large_frames_are_built_in_several_turns_of_the_loop(sending, two_brokers, transport):
    """A batch of 8 MB was once encoded and written to the socket in one turn."""
    two_brokers()
    await sending.send_one("T", read_message(b'{"body": "b"}'))
    turns, turn_of_request, invoke, all_made = 0, [], transport.invoke, asyncio.Event()

    async def noted(address, command, *, timeout_ms):
        turn_of_request.append(turns)
        if len(turn_of_request) == 4:
            all_made.set()
        return await invoke(address, command, timeout_ms=timeout_ms)

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    transport.invoke = noted
    counting = asyncio.create_task(count_turns())
    sent = asyncio.create_task(send_many(sending, "T", items(*[json.dumps({"body": "x" * 8_000})] * 1_000), "id"))
    await all_made.wait()
    counting.cancel()
    assert outcomes(await sent) == ["stored"] * 1_000
    assert len(set(turn_of_request)) == len(turn_of_request) >= 4


def windowed(request: RemotingCommand) -> ScriptedOutcome:
    return ok(request, body=encode_topic_config(TopicConfig("T", 2, 2, attributes={DUPLICATE_WINDOW: "60000"})))


def sent_to(transport):
    """Return the queues that sends went to, by broker address and queue id."""
    return [
        (address, command.ext_fields["e"]) for address, command in transport.requests if command.code in (SEND, BATCH)
    ]


class TestDuplicateWindow:
    @pytest.fixture
    def window(self, two_brokers, transport):
        two_brokers()
        for name in "ab":
            transport.at(f"{name}:10911", {RequestCode.GET_TOPIC_CONFIG: windowed})

    @pytest.mark.usefixtures("window")
    async def test_a_key_goes_to_one_queue_whatever_was_sent_before(self, sending, transport):
        for _ in range(4):
            for key in ("order-1", "order-2", "order-3"):
                await sending.send_one("T", keyed(key))
        places = sent_to(transport)
        assert places[:3] * 4 == places
        assert sending.detects_duplicates("T")

    @pytest.mark.usefixtures("window")
    async def test_messages_without_a_key_go_to_any_queue(self, sending, transport):
        for _ in range(8):
            await sending.send_one("T", read_message(b'{"body": "b"}'))
        assert len(set(sent_to(transport))) > 1
        assert not sending.detects_duplicates("T")

    @pytest.mark.usefixtures("window")
    async def test_a_key_of_a_batch_goes_where_a_single_message_goes(self, sending, transport):
        await sending.send_one("T", keyed("order-1"))
        await send_many(sending, "T", items('{"body": "b", "idempotency_key": "order-1"}'), "r")
        first, second = sent_to(transport)
        assert first == second

    @pytest.mark.usefixtures("window")
    async def test_the_brokers_are_asked_once_for_many_sends(self, sending, transport):
        await asyncio.gather(*(sending.send_one("T", keyed(f"k{number}")) for number in range(20)))
        asked = [command.code for _, command in transport.requests].count(RequestCode.GET_TOPIC_CONFIG)
        assert asked == 2

    async def test_without_a_window_a_key_does_not_choose_the_queue(self, sending, two_brokers, transport):
        two_brokers()
        plain = lambda request: ok(request, body=encode_topic_config(TopicConfig("T", 2, 2)))
        for name in "ab":
            transport.at(f"{name}:10911", {RequestCode.GET_TOPIC_CONFIG: plain})
        for _ in range(8):
            await sending.send_one("T", keyed("order-1"))
        assert len(set(sent_to(transport))) > 1

    @pytest.mark.usefixtures("window")
    async def test_a_key_never_goes_to_another_broker_when_its_own_refuses(self, sending, two_brokers, transport):
        for name in "ab":
            transport.at(f"{name}:10911", {SEND: refuse(ResponseCode.SYSTEM_BUSY)})
        with pytest.raises(ProblemError) as caught:
            await sending.send_one("T", keyed("order-1"))
        assert (caught.value.outcome, caught.value.kind.retryable) == ("not_stored", True)
        assert len(sent_to(transport)) == 1

    async def test_a_broker_that_does_not_answer_may_have_a_window(self, sending, two_brokers, transport):
        two_brokers()
        transport.at("a:10911", {RequestCode.GET_TOPIC_CONFIG: windowed})
        transport.at(
            "b:10911",
            {RequestCode.GET_TOPIC_CONFIG: lambda request: wire.RequestTimeoutError("b:10911", "gone", sent=True)},
        )
        for _ in range(6):
            await sending.send_one("T", keyed("order-1"))
        assert len(set(sent_to(transport))) == 1

    async def test_a_replay_has_the_first_place(self, sending, two_brokers):
        def replay(request: RemotingCommand) -> ScriptedOutcome:
            ext = {"msgId": "A" * 32, "queueId": "5", "queueOffset": "9", "gantryReplayed": "true"}
            return ok(request, ext=ext)

        two_brokers(replay, replay)
        result = await send_one(sending, read_message(b'{"body": "b", "queue": {"broker": "b", "id": 1}}'))
        assert (result["replayed"], result["queue_id"], result["queue_offset"]) == (True, 5, "9")

    async def test_each_message_of_a_batch_has_its_own_place(self, sending, two_brokers):
        def mixed(request: RemotingCommand) -> ScriptedOutcome:
            ext = {"msgId": "A,B,C", "queueId": "1", "queueOffset": "4", "gantryPositions": "1:4:1,0:7:1:r,1:5:1"}
            return ok(request, ext=ext)

        two_brokers(mixed, mixed)
        place = '"queue": {"broker": "b", "id": 1}'
        results = await send_many(sending, "T", items(*(f'{{"body": "b", {place}}}' for _ in range(3))), "r")
        assert [(r["stored_id"], r["queue_id"], r["queue_offset"], r.get("replayed")) for r in results] == [
            ("A", 1, "4", None),
            ("B", 0, "7", True),
            ("C", 1, "5", None),
        ]


def keyed(key: str):
    message = read_message(b'{"body": "b"}')
    message.idempotency_key = key
    return message
