"""Trace data: written in batches, never at the expense of the messages."""

import asyncio

import pytest

from gantry.client.errors import SendError
from gantry.client.producer import Producer
from gantry.client.tracer import BATCH_MAX, GROUP, WAITING_MAX, Tracer
from gantry.model.compression import decompress
from gantry.model.message import Message, decode_properties
from gantry.model.names import TRACE_TOPIC
from gantry.model.record import decode_record, encode_record
from gantry.model.tracedata import Pub, SubAfter, SubBefore, decode_traces
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.scriptedpeer import ok, refuse

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
STORED = "7F0000010000277700000000000000AB"
HOST = b"\x7f\x00\x00\x01\x00\x00\x27\x77"


class Broker:
    """Stores messages of topic T; keeps the trace messages, or refuses them."""

    def __init__(self, *, trace_on: str = "true", refuses_traces: bool = False) -> None:
        self.trace_on = trace_on
        self.refuses_traces = refuses_traces
        self.traces = []
        self.groups = []

    def answer(self, request):
        if request.ext_fields["b"] == TRACE_TOPIC:
            if self.refuses_traces:
                return refuse(ResponseCode.NO_PERMISSION)(request)
            flag = int(request.ext_fields["f"])
            body = decompress(request.body_bytes, flag) if flag else request.body_bytes
            self.traces.append((body, decode_properties(request.ext_fields["i"].encode())))
            self.groups.append(request.ext_fields["a"])
        count = 2 if request.code == BATCH else 1
        return ok(
            request,
            ext={
                "msgId": ",".join([STORED] * count),
                "queueId": "0",
                "queueOffset": "7",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": self.trace_on,
            },
        )


@pytest.fixture
def brokers(cluster, transport):
    def set_up(broker: Broker) -> None:
        cluster.topic("T", "a")
        cluster.topic(TRACE_TOPIC, "a")
        transport.at("a:10911", {SEND: broker.answer, BATCH: broker.answer})

    return set_up


@pytest.fixture
async def tracer(engine):
    tracer = Tracer(engine)
    await tracer.start()
    yield tracer
    await tracer.close()


async def test_a_send_is_written_with_its_id_and_keys(engine, brokers, tracer):
    broker = Broker()
    brokers(broker)
    sent = await Producer(engine, "pg").send(Message("T", b"hello", {"TAGS": "A", "KEYS": "k1 k2"}))
    await asyncio.sleep(2)
    ((body, properties),) = broker.traces
    assert properties["KEYS"].split() == [sent.message_id, "k1", "k2"]
    assert broker.groups == [GROUP]
    (trace,), _ = decode_traces(body)
    assert isinstance(trace, Pub)
    assert trace == Pub(
        at_ms=trace.at_ms,
        region="DefaultRegion",
        group="pg",
        topic="T",
        message_id=sent.message_id,
        tag="A",
        keys="k1 k2",
        store_host="127.0.0.1:10103",
        body_bytes=5,
        cost_ms=trace.cost_ms,
        message_kind=0,
        stored_id=STORED,
        is_success=True,
    )


async def test_each_message_of_a_batch_has_a_record(engine, brokers, tracer):
    broker = Broker()
    brokers(broker)
    results = await Producer(engine, "pg").send_batch("T", [Message("T", b"1"), Message("T", b"22", {"DELAY": "0"})])
    await asyncio.sleep(2)
    traces, _ = decode_traces(broker.traces[0][0])
    assert [(one.message_id, one.body_bytes) for one in traces] == [
        (results[0].message_id, 1),
        (results[1].message_id, 2),
    ]


async def test_nothing_is_written_without_a_tracer_or_against_the_broker(engine, brokers):
    broker = Broker(trace_on="false")
    brokers(broker)
    producer, tracer = Producer(engine, "pg"), Tracer(engine)
    await producer.send(Message("T", b"before"))
    await tracer.start()
    await producer.send(Message("T", b"not wanted"))
    await tracer.close()
    await producer.send(Message("T", b"after"))
    assert (broker.traces, tracer.dropped) == ([], 0)


async def test_sends_succeed_while_traces_are_refused(engine, brokers, tracer):
    broker = Broker(refuses_traces=True)
    brokers(broker)
    await Producer(engine, "pg").send(Message("T", b"hello"))
    await asyncio.sleep(30)
    assert tracer.dropped == 1


async def test_a_refused_send_is_not_written(engine, cluster, transport, tracer):
    cluster.topic("T", "a")
    transport.at("a:10911", {SEND: refuse(ResponseCode.MESSAGE_ILLEGAL)})
    with pytest.raises(SendError):
        await Producer(engine, "pg").send(Message("T", b"hello"))
    await asyncio.sleep(2)
    assert tracer.dropped == 0


async def test_records_beyond_the_limit_are_dropped(engine, brokers, tracer):
    broker = Broker()
    brokers(broker)
    record = stored("m")
    for _ in range(WAITING_MAX + 3):
        tracer.consuming("cg", [record])
    assert tracer.dropped == 3
    await asyncio.sleep(60)
    counts = [len(decode_traces(body)[0]) for body, _ in broker.traces]
    assert (sum(counts), max(counts)) == (WAITING_MAX, BATCH_MAX)


async def test_a_cancelled_close_drops_the_records_that_wait(engine, brokers, transport):
    brokers(Broker())
    tracer = Tracer(engine)
    await tracer.start()
    await Producer(engine, "pg").send(Message("T", b"hello"))
    transport.latency_s["a:10911"] = 1
    for _ in range(3 * BATCH_MAX):
        tracer.consuming("cg", [stored("m")])
    closing = asyncio.ensure_future(tracer.close())
    await asyncio.sleep(0.5)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert tracer.dropped > 0
    tracer.consuming("cg", [stored("m")])
    before = len(transport.sent(SEND))
    await asyncio.sleep(60)
    assert len(transport.sent(SEND)) == before


async def test_a_consumer_writes_beginning_and_end(engine, brokers, tracer):
    broker = Broker()
    brokers(broker)
    consumption = tracer.consuming("cg", [stored("m1", reconsume_times=2), stored("m2", TRACE_ON="false")])
    await asyncio.sleep(3)
    consumption.ended(is_success=False)
    await tracer.close()
    before, after = (trace for body, _ in broker.traces for trace in decode_traces(body)[0])
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (before.group, before.message_id, before.retry_times) == ("cg", "m1", 2)
    assert (after.request_id, after.message_id, after.is_success, after.code) == (before.request_id, "m1", False, 4)
    assert (after.at_ms - before.at_ms, after.cost_ms) == (3_000, 3_000)


async def test_close_writes_what_waits(engine, brokers):
    broker = Broker()
    brokers(broker)
    tracer = Tracer(engine)
    await tracer.start()
    await Producer(engine, "pg").send(Message("T", b"hello"))
    await tracer.close()
    assert len(broker.traces) == 1


def stored(message_id: str, *, reconsume_times: int = 0, **properties: str):
    text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": message_id, **properties}.items())
    data = encode_record(0, 0, 7, 0, 0, 1, HOST, 2, HOST, reconsume_times, 0, b"body", b"T", text.encode(), 0, 1, False)
    return decode_record(data, check_crc=False)
