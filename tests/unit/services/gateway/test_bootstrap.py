"""A feature is one function in one list: its routes, background work and hooks join those of the gateway."""

import json

import pytest
from starlette.routing import WebSocketRoute

from services.gateway.asgi.answer import json_answer
from services.gateway.asgi.operation import Operation
from services.gateway.auth.keyring import KeyRecord, digest_of
from services.gateway.bootstrap import FEATURES, Gateway
from services.gateway.core import Core, Feature, build_core
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import GatewaySettings

KEY = (b"authorization", b"Bearer gk_x")


class Tides:
    """A feature that the gateway does not have: a table of tides, and a WebSocket that tells the next one."""

    def __init__(self) -> None:
        self.events = []

    def feature(self, core):
        clock = core.clock

        async def show(call):
            call.principal.require_admin()
            return json_answer({"port": call.path_params["port"], "now_ms": clock.now_ms()})

        async def live(websocket):
            await websocket.accept()
            await websocket.close()

        async def at_start():
            self.events.append("start")

        async def at_stop(timeout_ms):
            self.events.append(("stop", timeout_ms))

        async def survey():
            self.events.append("survey")

        routes = [Operation("GET", "/v1/tides/{port}", show), WebSocketRoute("/v1/tides", live)]
        return Feature(routes, background={"tides": survey}, at_start=at_start, at_stop=at_stop)


@pytest.fixture
def core():
    core = build_core(GatewaySettings(), process_id=1)
    core.keys.replace([KeyRecord("key-1", digest_of("gk_x"), "n", ALL_RIGHTS)])
    return core


def gateway_of(core, *features):
    return Gateway(core, [feature(core) for feature in features])


async def exchange(gateway, kind, raw_path, *headers):
    """Return what the gateway sends to a request or a handshake."""
    sent = []

    async def receive():
        return {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "method": "GET",
        "path": "",
        "raw_path": raw_path,
        "query_string": b"",
        "headers": [*headers],
    }
    extensions = {"websocket.http.response": {}}
    await gateway.application()({**scope, "client": ("192.0.2.1", 1), "extensions": extensions}, receive, send)
    return sent


@pytest.mark.parametrize("place", [0, len(FEATURES)])
async def test_a_feature_needs_one_line_and_gets_what_every_feature_has(core, place):
    tides = Tides()
    gateway = gateway_of(core, *FEATURES[:place], tides.feature, *FEATURES[place:])

    start, body = await exchange(gateway, "http", b"/v1/tides/a%2Fb", KEY)
    assert (start["status"], json.loads(body["body"])["port"]) == (200, "a/b")
    for path, headers, status in (
        (b"/v1/tides/x", (), 401),
        (b"/v1/tides/x/", (KEY,), 404),
        (b"/v1/tides/%ff", (KEY,), 400),
    ):
        start, body = await exchange(gateway, "http", path, *headers)
        assert (start["status"], json.loads(body["body"])["status"]) == (status, status)
        assert b"x-request-id" in dict(start["headers"])
    assert b'"/v1/tides/{port}"' in core.metrics.render()

    accepted, _ = await exchange(gateway, "websocket", b"/v1/tides")
    assert accepted["type"] == "websocket.accept"

    work = gateway.background()
    await work.pop("tides")
    for other in work.values():
        other.close()
    await gateway.close_open(timeout_ms=70)
    assert tides.events == ["survey", ("stop", 70)]


@pytest.mark.parametrize("path", [b"/v1/nowhere", b"/v1/stream/", b"/v1%2Fstream", b"/v1/tides", b"/%ff"])
async def test_a_handshake_at_a_path_without_a_websocket_is_rejected(core, path):
    start, body = await exchange(gateway_of(core, *FEATURES), "websocket", path)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 404)
    assert json.loads(body["body"])["detail"] == "path: only /v1/stream is a WebSocket"


@pytest.mark.parametrize("has_database", [True, False])
async def test_the_lifespan_starts_features_where_postgres_answers(core, monkeypatch, has_database):
    tides = Tides()

    async def start(core):
        tides.events.append("core")
        return has_database

    async def stop(core):
        tides.events.append("end")

    monkeypatch.setattr(Core, "start", start)
    monkeypatch.setattr(Core, "stop", stop)
    app = gateway_of(core, tides.feature).application()
    async with app.router.lifespan_context(app):
        tides.events.append("open")
    assert tides.events == ["core", *(["start"] if has_database else []), "open", "end"]


def test_two_features_may_not_claim_the_same_operation_or_the_same_name(core):
    first, second = Tides(), Tides()
    gateway = gateway_of(core, first.feature, second.feature)
    with pytest.raises(AssertionError, match="an operation is there twice"):
        gateway.application()
    with pytest.raises(AssertionError, match="background work of one name"):
        gateway.background()
