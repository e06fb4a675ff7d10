"""Who consumes which queue, as brokers and the clients themselves say it.

A broker knows which clients are connected for a group, and from where. Which queues a client has taken only the client
knows: clients share them out among themselves. It is asked through the broker (307). A client that does not answer, as
those of some languages, is known by name and host, and its queues are not; nobody works them out in its place.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError
from gantry.remoting.bodies.connections import ConsumerConnection, ConsumerRunningInfo
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import GetConsumerConnectionListHeader, GetConsumerRunningInfoHeader
from gantry.runtime.telemetry import logger
from spark.datasource import live
from spark.datasource.options import Options

log = logger("spark.owners")

GROUPS_MAX: Final = 200
CLIENTS_MAX: Final = 1_000
"""That are asked, in the order of the groups; beyond, and behind the time-out, nothing is known."""
ASK_TIMEOUT_MS: Final = 3_000
"""For all clients together: a report does not wait for one that hangs."""
REQUESTS_MAX: Final = 64

OWNERS: Final = pa.list_(pa.struct([("client_id", pa.string()), ("host", pa.string()), ("queues", pa.int32())]))
"""A row's owners. `queues` is how many of the row's queues the client says it has; null: it did not say."""

Queue = tuple[str, str, int]
"""Topic, broker and queue id."""
_NOBODY: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@dataclass(slots=True)
class Client:
    """A connected client: where it connects from, the broker that knows it, and its queues, None where it did not say."""

    client_id: str
    host: str
    address: str
    queues: frozenset[Queue] | None = None


@dataclass(slots=True)
class GroupOwners:
    """A group's clients by id, and of how many brokers it is not known who is connected to them."""

    clients: dict[str, Client] = field(default_factory=dict)
    silent: int = 0


def read_owners(options: Options, groups: Sequence[str]) -> dict[str, GroupOwners]:
    """Ask brokers who is connected for some groups, and these clients for their queues.

    Args:
        options: Where the name servers are.
        groups: The most important first. Those beyond GROUPS_MAX are not asked about.

    Returns:
        By group, those of which a broker said something. Nothing where no name server answers any more: the report stands
        without it.
    """

    async def ask(engine: ClientEngine) -> dict[str, GroupOwners]:
        return await ask_owners(engine, groups[:GROUPS_MAX])

    try:
        return live.run(options, ask, timeout_ms=live.REQUEST_TIMEOUT_MS + 2 * ASK_TIMEOUT_MS)
    except (ClientError, TimeoutError) as error:
        log.warning("nobody says who owns the queues", reason=f"{type(error).__name__}: {error}")
        return {}


def owners_of_topic(group: GroupOwners, topic: str) -> list[dict[str, Any]] | None:
    """Return the clients of a group with how many queues of a topic each has; None where nobody knows of one."""
    if not group.clients and group.silent:
        return None
    return _shown(group.clients.values(), lambda queue: queue[0] == topic)


def owners_of_queue(group: GroupOwners, topic: str, broker: str, queue_id: int) -> list[dict[str, Any]] | None:
    """Return the clients that say they have a queue: none or several while queues move from one to the other.

    None where no client says so, and not all were asked.
    """
    queue = topic, broker, queue_id
    own = [client for client in group.clients.values() if client.queues is not None and queue in client.queues]
    is_known = group.silent == 0 and all(client.queues is not None for client in group.clients.values())
    return _shown(own, queue.__eq__) if own or is_known else None


def _shown(clients: Any, counts: Any) -> list[dict[str, Any]]:
    return [
        {
            "client_id": client.client_id,
            "host": client.host,
            "queues": None if client.queues is None else sum(map(counts, client.queues)),
        }
        for client in sorted(clients, key=lambda client: client.client_id)
    ]


async def ask_owners(engine: ClientEngine, groups: Sequence[str]) -> dict[str, GroupOwners]:
    """Ask brokers who is connected for groups, and each client for its queues. Raises ClientError: no name server answers."""
    brokers = (await engine.cluster_info()).broker_addr_table.values()
    found = {group: GroupOwners(silent=len(brokers)) for group in groups}
    places = [(data.master_address, group) for data in brokers for group in groups]
    await _together([_ask_group(engine, address, group, found[group]) for address, group in places])
    clients = [(group, client) for group in groups for client in found[group].clients.values()][:CLIENTS_MAX]
    await _together([_ask_client(engine, group, client) for group, client in clients])
    return found


async def _together(asked: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run some requests at a time, and leave what is not answered in time."""
    turns = asyncio.Semaphore(REQUESTS_MAX)

    async def one(request: Coroutine[Any, Any, None]) -> None:
        async with turns:
            await request

    tasks = [asyncio.ensure_future(one(request)) for request in asked]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=ASK_TIMEOUT_MS / 1_000)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_group(engine: ClientEngine, address: str | None, group: str, found: GroupOwners) -> None:
    if address is None:
        return
    try:
        header = GetConsumerConnectionListHeader(consumer_group=group)
        response = await engine.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        connections = read_body(ConsumerConnection.decode, response, address).connections
    except BrokerError as error:
        if error.code not in _NOBODY:
            return
        connections = ()
    except ClientError:
        return
    found.silent -= 1
    for one in connections:
        host = one.client_addr.lstrip("/").rpartition(":")[0].strip("[]") or one.client_addr
        found.clients.setdefault(one.client_id, Client(one.client_id, host, address))


async def _ask_client(engine: ClientEngine, group: str, client: Client) -> None:
    header = GetConsumerRunningInfoHeader(consumer_group=group, client_id=client.client_id, jstack_enable=False)
    try:
        response = await engine.call(
            client.address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=ASK_TIMEOUT_MS
        )
        info = read_body(ConsumerRunningInfo.decode, response, client.address)
    except ClientError:
        return
    # A queue that it has dropped is another client's by now.
    client.queues = frozenset(
        (queue.topic, queue.broker_name, queue.queue_id) for queue, state in info.queues.items() if not state.droped
    )
