"""Unread answers: the share of the memory that one key or address may fill with them."""

import json

import pytest

from services.gateway.addresses import address_group
from services.gateway.app import make_application
from services.gateway.asgi.answer import Answer, encode_json
from services.gateway.asgi.operation import Operation
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.errors import NOT_STORED
from services.gateway.features.send import send_routes
from services.gateway.limits import RESULT_BYTES, UNSENT_BYTES_FREE, Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import GatewaySettings
from tests.support.callers import callers_of
from tests.support.sendresults import stored_messages
from tests.support.virtualtime import FakeClock
from tests.unit.services.gateway.wires import House, Wire, settle

ANSWER_BYTES = 100_000
SHARE, TOTAL, ADDRESS_SHARE = 5 * ANSWER_BYTES, 8 * ANSWER_BYTES, 2 * ANSWER_BYTES


class Sending:
    """Stores every message."""

    def __init__(self) -> None:
        self.stored = 0

    def check_topic(self, topic):
        pass

    def detects_duplicates(self, topic):
        return False

    async def send_many(self, topic, items, *, turn):
        self.stored += len(items)
        return stored_messages(topic, len(items))


async def large(call):
    return Answer(200, bytes(ANSWER_BYTES))


async def giant(call):
    return Answer(200, bytes(2 * SHARE))


async def small(call):
    return Answer(200, b"{}")


ROUTES = [
    Operation("GET", "/large", large),
    Operation("PUT", "/large", large),
    Operation("GET", "/giant", giant),
    Operation("GET", "/small", small),
    Operation("GET", "/public", large, is_public=True),
]


class Gateway:
    """A gateway's HTTP application behind connections without sockets."""

    def __init__(self, **settings):
        self.sending = Sending()
        self.settings = GatewaySettings(
            **{
                "unsent_bytes_max": TOTAL,
                "key_unsent_bytes_max": SHARE,
                "address_unsent_bytes_max": ADDRESS_SHARE,
                **settings,
            }
        )
        self.settings.check()
        self.limits = Limits(self.settings)
        keys = KeyRing()
        keys.replace([KeyRecord(f"key-{name}", digest_of(name), name, ALL_RIGHTS) for name in "abc"])

        front = make_application(
            [*ROUTES, *send_routes(self.sending)],
            callers_of(keys, FakeClock()),
            GatewayMetrics(),
            clock=FakeClock(),
            limits=self.limits,
            access_log=True,
            is_stopping=lambda: False,
        )
        self.house = House(front)

    async def ask(self, line, key="a", *, host="127.0.0.1", takes=False, body=b"", times=1):
        """Send a request on a new connection whose client reads the answer or does not."""
        connection, wire = self.house.connect(host)
        wire.takes = takes
        head = f"{line} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        credentials = f"authorization: Bearer {key}\r\n" if key else ""
        connection.data_received(((head + credentials + "\r\n").encode() + body) * times)
        await settle()
        return wire


def status_of(wire: Wire, index: int = 0) -> int:
    return int(wire.writes[index].split(b" ", 2)[1])


def batch(count: int) -> bytes:
    return encode_json({"messages": [{"body": "x"}] * count})


async def test_readers_of_one_key_have_a_share_and_a_neighbour_notices_nothing():
    gateway = Gateway()
    quota = gateway.limits.unsent_bytes
    wires = [await gateway.ask("GET /large") for _ in range(5)]
    assert quota.held_by("key-a") == SHARE
    refused = await gateway.ask("GET /large")
    assert [status_of(wire) for wire in [*wires, refused]] == [200] * 5 + [429]
    assert b"retry-after: " in refused.writes[0]
    assert b"unsent_bytes" in refused.writes[0]
    assert (quota.refused_each, quota.refused_total) == (1, 0)
    assert status_of(await gateway.ask("GET /small")) == 200, "small requests of the key itself still succeed"
    for _ in range(10):
        assert status_of(await gateway.ask("GET /large", "b", takes=True)) == 200
    assert quota.held_by("key-b") == 0
    wires[0].take_all()
    await settle()
    assert quota.held_by("key-a") == SHARE - ANSWER_BYTES
    assert status_of(await gateway.ask("GET /large")) == 200
    for wire in wires[1:]:
        wire.connection.connection_lost(None)
    await settle()
    assert quota.held_by("key-a") == ANSWER_BYTES


async def test_all_keys_together_share_the_total():
    gateway = Gateway()
    for key in "ab":
        for _ in range(4):
            assert status_of(await gateway.ask("GET /large", key)) == 200
    refused = await gateway.ask("GET /large", "c", takes=True)
    assert status_of(refused) == 503
    assert gateway.limits.unsent_bytes.used == TOTAL


async def test_an_answer_may_be_larger_than_the_share():
    gateway = Gateway()
    assert status_of(await gateway.ask("GET /giant")) == 200
    assert status_of(await gateway.ask("GET /giant")) == 429


async def test_an_answer_that_waits_for_an_earlier_one_counts_too():
    gateway = Gateway()
    wire = await gateway.ask("GET /large", times=5)
    assert (len(wire.writes), gateway.limits.unsent_bytes.used) == (1, 2 * ANSWER_BYTES)
    for count in range(2, 6):
        wire.take_all()
        await settle()
        assert len(wire.writes) == count
    wire.take_all()
    await settle()
    assert gateway.limits.unsent_bytes.used == 0


async def test_only_little_of_a_connection_is_not_counted():
    gateway = Gateway()
    wire = await gateway.ask("GET /small", times=100)
    assert wire.unsent_bytes <= 2 * UNSENT_BYTES_FREE
    assert len(wire.writes) < 100


async def test_a_finished_change_is_reported_even_above_the_share():
    gateway = Gateway()
    wires = [await gateway.ask("PUT /large") for _ in range(7)]
    assert {status_of(wire) for wire in wires} == {200}
    assert gateway.limits.unsent_bytes.held_by("key-a") == 7 * ANSWER_BYTES
    assert status_of(await gateway.ask("GET /large", "b")) == 200


async def test_a_batch_without_room_for_its_answer_is_not_stored():
    gateway = Gateway()
    fits = SHARE // RESULT_BYTES // 2
    count = 0
    while status_of(wire := await gateway.ask("POST /v1/topics/T/messages:batch", body=batch(fits))) == 200:
        count += fits
        assert count < 20 * fits
    problem = json.loads(wire.writes[0].partition(b"\r\n\r\n")[2])
    assert (problem["status"], problem["outcome"], problem["retryable"]) == (429, NOT_STORED, True)
    assert gateway.sending.stored == count > 0
    stored = await gateway.ask("POST /v1/topics/T/messages:batch", "b", body=batch(fits), takes=True)
    assert json.loads(stored.writes[0].partition(b"\r\n\r\n")[2])["stored"] == fits
    assert gateway.limits.unsent_bytes.held_by("key-b") == 0


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
async def test_answers_without_a_key_count_with_the_address(host):
    gateway = Gateway()
    quota = gateway.limits.address_unsent_bytes
    for _ in range(2):
        assert status_of(await gateway.ask("GET /public", None, host=host)) == 200
    assert quota.held_by(address_group(host)) == 2 * ANSWER_BYTES
    assert status_of(await gateway.ask("GET /public", None, host=host)) == 429
    assert status_of(await gateway.ask("GET /public", None, host="198.51.100.1")) == 200
    assert status_of(await gateway.ask("GET /large", "a", host=host)) == 200
