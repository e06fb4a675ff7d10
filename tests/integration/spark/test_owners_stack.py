"""Since when a group is behind and who has its queues, on a real stack: in rows, over HTTP, and on the page."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.message import MessageQueue
from gantry.remoting.aio import Handler, RemotingClient
from gantry.remoting.bodies.connections import ConsumerRunningInfo, ProcessQueueInfo
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.integration.spark.test_reports_stack import finished, send
from tests.support.heartbeats import consumer_beat
from tests.support.stack import Stack

CLIENT = "10.9.8.7@app"
QUEUE = {"topic": "HALTED", "broker": "broker-a", "queue_id": 0}

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    quiet = {
        f"GANTRY_SCHEDULER_{job.upper()}_CRON": "" for job in ("lag_report", "throughput_rollup", "backlog_profile")
    }
    often = {"GANTRY_GATEWAY_SAMPLE_INTERVAL_MS": "300"}
    with Stack(brokers=1, environment=quiet | often, scheduler=True) as running:
        yield running


def make_transport(handlers: Mapping[int, Handler], lost: Callable[[str], None]) -> RemotingClient:
    """Make a client that says which queues it has, as RocketMQ's own does."""

    def say(channel: Any, request: RemotingCommand) -> RemotingCommand:
        info = ConsumerRunningInfo(queues={MessageQueue("HALTED", "broker-a", 0): ProcessQueueInfo()})
        return RemotingCommand.response_to(request, 0, body=info.encode())

    return RemotingClient(
        clock=SystemClock(),
        handlers={**handlers, RequestCode.GET_CONSUMER_RUNNING_INFO: say},
        on_channel_closed=lambda address, _: lost(address),
    )


@pytest.fixture
async def engine(stack: Stack) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng(), make_transport=make_transport)
    await engine.start()
    yield engine
    await engine.stop()


def history(client: httpx.Client) -> list[dict[str, Any]]:
    # The history of an hour has points 15 s apart.
    since = datetime.now(UTC) - timedelta(hours=1)
    wanted = {"group": "HALTING", "topic": "HALTED", "from": since.isoformat(timespec="milliseconds")}
    answer = client.get("/v1/reports/lag_report/history", params=wanted)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def commit(client: httpx.Client, offset: int) -> None:
    body = {"offsets": [{**QUEUE, "offset": str(offset)}]}
    assert client.put("/v1/groups/HALTING/offsets", json=body).status_code == 200


async def test_a_paused_group_is_behind_since_its_first_message_and_its_client_is_named(
    stack: Stack, engine: ClientEngine
) -> None:
    with stack.http() as client:
        assert client.put("/v1/topics/HALTED", json={"read_queues": 1, "write_queues": 1}).status_code in {200, 201}
        assert client.put("/v1/groups/HALTING", json={"consume": False}).status_code in {200, 201}
        await asyncio.to_thread(send, client, "HALTED", 3)
        commit(client, 3)
        address = (await Admin(engine).masters(["broker-a"]))["broker-a"]
        await engine.call(address, RequestCode.HEART_BEAT, body=consumer_beat(CLIENT, "HALTING", "HALTED"))
        await asyncio.to_thread(
            stack.wait_for, lambda: history(client) and history(client)[-1]["lag_seconds"] == 0, "to see it keep up"
        )
        await asyncio.to_thread(send, client, "HALTED", 5)
        await asyncio.to_thread(
            stack.wait_for, lambda: (history(client)[-1]["lag_seconds"] or 0) > 11, "to see it behind", timeout_s=60
        )
        first = client.get("/v1/topics/HALTED/queues/broker-a/0/messages", params={"offset": "3", "limit": 1}).json()
        broker_queries = client.post("/v1/reports/lag_report/runs", json={})
        run = await asyncio.to_thread(finished, client, stack, broker_queries.json()["id"])
        assert (run["status"], run["error"]) == ("succeeded", None)
        rows = client.get("/v1/reports/lag_report/rows", params={"group": "HALTING"}).json()["items"]
        page = client.get("/v1/reports/lag_report/runs/latest/html").text
    topic, queue = rows
    assert (topic["verdict"], topic["lag_messages"]) == ("PAUSED", 5)
    stored_at = datetime.fromisoformat(first["messages"][0]["stored_at"])
    since = datetime.fromisoformat(topic["behind_since"])
    assert abs((since - stored_at).total_seconds()) < 0.01
    assert queue["behind_since"] is None
    owner = {"client_id": CLIENT, "host": "127.0.0.1", "queues": 1}
    assert (topic["owners"], queue["owners"]) == ([owner], [owner])
    assert f"{CLIENT}</bdi> at" in page
    assert "HALTING · HALTED, time behind" in page
