"""Finding messages: an id given by a caller leads to no address except the cluster's brokers."""

import pytest

from gantry.model.address import Address
from gantry.model.message import CrcState, StoredMessage
from gantry.model.messageid import encode_stored_id
from gantry.model.record import encode_message
from gantry.model.route import BrokerData
from gantry.remoting.codes import RequestCode, ResponseCode
from services.gateway.errors import ProblemError
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.views.messages import message_view
from services.gateway.views.reads import found_view
from tests.support.scriptedpeer import ok, refuse

HOST = Address("10.0.0.1", 10911)
QUERY, VIEW = RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID


def record(physical: int = 100, *, message_id: str = "ID1", keys: str = "k1", stored_at: int = 2_000) -> bytes:
    message = StoredMessage(
        "T", 0, 3, physical, 0, 0, 0, 0, 1_000, HOST, stored_at, HOST, 0, 0, b"body",
        {"UNIQ_KEY": message_id, "KEYS": keys}, 1, CrcState.OK,
    )  # fmt: skip
    return encode_message(message, whole_record_crc=True)


def answering(*records: bytes):
    return lambda request: ok(request, body=b"".join(records))


@pytest.fixture
def lookup(engine, brokers, reader, metrics, topics) -> Lookup:
    return Lookup(engine, brokers, reader, metrics, topics=topics)


@pytest.fixture
def one_broker(cluster, transport):
    """Topic T on broker a, whose master is at HOST."""
    cluster.topic("T", "a")
    data = BrokerData("C", "a", {0: str(HOST)})
    cluster.registered["a"] = data
    cluster.routes["T"] = type(cluster.routes["T"])(cluster.routes["T"].queue_datas, (data,))
    transport.at(str(HOST), {QUERY: refuse(ResponseCode.QUERY_NOT_FOUND), VIEW: refuse(ResponseCode.SYSTEM_ERROR)})
    return transport


async def problem_of(awaitable) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        await awaitable
    return caught.value


async def test_an_address_that_is_no_broker_is_never_connected_to(lookup, one_broker):
    for host in (Address("192.0.2.1", 80), Address("10.0.0.1", 22), Address("::1", 1)):
        problem = await problem_of(lookup.by_id(encode_stored_id(host, 100), None))
        assert problem.status == 404
    asked = {address for address, request in one_broker.requests if request.code == VIEW}
    assert asked == set()


async def test_a_stored_id_is_read_from_its_broker(lookup, one_broker):
    one_broker.at(str(HOST), {VIEW: answering(record(100))})
    message, broker = await lookup.by_id(encode_stored_id(HOST, 100), None)
    assert (message.message_id, broker) == ("ID1", "a")
    # A record other than the requested one is no answer.
    assert (await problem_of(lookup.by_id(encode_stored_id(HOST, 90), None))).status == 404
    one_broker.at(str(HOST), {VIEW: answering(b"torn")})
    assert (await problem_of(lookup.by_id(encode_stored_id(HOST, 100), None))).kind.name == "corrupt-record"


@pytest.mark.parametrize("message_id", ["zzz", "0" * 31, "0" * 33, "ü"])
async def test_an_invalid_id_is_not_found(lookup, one_broker, message_id):
    for topic in (None, "T"):
        assert (await problem_of(lookup.by_id(message_id, topic))).status == 404


async def test_with_a_topic_the_message_id_is_tried_first_and_the_first_stored_message_wins(lookup, one_broker):
    again, first, other = record(300, stored_at=3_000), record(200), record(400, message_id="ID2")
    one_broker.at(str(HOST), {QUERY: answering(again, first, other)})
    message, _ = await lookup.by_id("ID1", "T")
    assert message.physical_offset == 200
    [request] = one_broker.sent(QUERY)
    assert request.ext_fields["_UNIQUE_KEY_QUERY"] == "true"


async def test_a_key_is_compared_by_its_text_and_not_by_its_hash(lookup, one_broker):
    one_broker.at(
        str(HOST), {QUERY: answering(record(1, keys="k1 k2"), record(2, keys="other"), record(3, stored_at=9_000))}
    )
    found = await lookup.by_key("T", "k1", limit=3)
    items = [message_view(message) for message in found.messages]
    assert [item["stored_id"][-2:] for item in items] == ["03", "01"]
    assert found_view(found, binary=False) == {"next_cursor": None, "scanned": "3", "truncated": True}
    found = await lookup.by_key("T", "k1", limit=10)
    assert found_view(found, binary=True) == {"next_cursor": None, "scanned": 3, "truncated": False}


async def test_a_damaged_message_is_not_shown(lookup, one_broker, metrics):
    damaged = bytearray(record(100))
    damaged[89] ^= 1  # The flipped bit is in the body.
    one_broker.at(str(HOST), {VIEW: answering(bytes(damaged)), QUERY: answering(bytes(damaged))})
    message, broker = await lookup.by_id(encode_stored_id(HOST, 100), None)
    with pytest.raises(ProblemError) as caught:
        lookup.require_valid(message, broker)
    assert (caught.value.status, caught.value.retryable) == (500, False)
    assert list((await lookup.by_key("T", "k1", limit=3)).messages) == []
    assert metrics.damaged_records == 2


async def test_an_id_is_not_unknown_while_no_broker_is_registered(lookup, one_broker, cluster):
    one_broker.at(str(HOST), {VIEW: answering(record(100))})
    registered, cluster.registered = cluster.registered, {}
    assert (await problem_of(lookup.by_id(encode_stored_id(HOST, 100), None))).kind.name == "broker-unavailable"
    cluster.registered = registered
    await lookup.by_id(encode_stored_id(HOST, 100), None)
    # A restarted name server lists no broker; the broker is where it was.
    cluster.registered = {}
    message, _ = await lookup.by_id(encode_stored_id(HOST, 100), None)
    assert message.message_id == "ID1"


async def test_an_id_is_not_unknown_if_a_broker_could_not_be_asked(lookup, cluster, transport):
    cluster.topic("T", "a", "b")
    transport.at("a:10911", {QUERY: refuse(ResponseCode.QUERY_NOT_FOUND)})
    transport.down("b:10911")
    for message_id in ("ID1", encode_stored_id(HOST, 100)):
        assert (await problem_of(lookup.by_id(message_id, "T"))).kind.name == "broker-unavailable"
