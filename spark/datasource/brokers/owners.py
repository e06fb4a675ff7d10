"""Finds the clients that consume each queue, from the answers of brokers and of the clients themselves.

A broker knows which clients are connected for a group, and their hosts. Only the client itself knows the queues that it
has taken, because clients allocate the queues among themselves. The broker forwards the question to the client (307).
The clients of some languages do not answer. Then their id and host are known, but not their queues: this module does
not compute the allocation itself.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
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
from spark.datasource.brokers import live
from spark.datasource.options import Options

log = logger("spark.owners")

GROUPS_MAX: Final = 200
CLIENTS_MAX: Final = 1_000
"""The limit for the clients that are asked, in the order of the groups. The queues of further clients, and of clients
that do not answer in time, are unknown."""
ASK_TIMEOUT_MS: Final = 3_000
"""The time limit for all brokers together, and for all clients together: a report does not wait for one that hangs."""
REQUESTS_MAX: Final = 64

OWNERS: Final = pa.list_(pa.struct([("client_id", pa.string()), ("host", pa.string()), ("queues", pa.int32())]))
"""The owners of a row. `queues` is how many of the row's queues the client reports as its own; null if it did not
answer."""

Queue = tuple[str, str, int]
"""Topic, broker and queue id."""
_NO_CONSUMER_CODES: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@dataclass(slots=True)
class Client:
    """A connected client.

    Attributes:
        client_id: The id of the client.
        host: The host that the client connects from.
        address: The address of a broker that the client is connected to.
        queues: The queues that the client reports as its own; None if it did not answer.
    """

    client_id: str
    host: str
    address: str
    queues: frozenset[Queue] | None = None


@dataclass(slots=True)
class GroupOwners:
    """The clients of a group by id. `silent` is the number of brokers whose connected clients are unknown."""

    clients: dict[str, Client] = field(default_factory=dict)
    silent: int = 0


def read_owners(options: Options, groups: Sequence[str], *, brokers: Collection[str] = ()) -> dict[str, GroupOwners]:
    """Ask brokers for the connected clients of some groups, and ask these clients for their queues.

    Args:
        options: The options with the addresses of the name servers.
        groups: The groups, the most important first. Groups after the first GROUPS_MAX are not asked about.
        brokers: The brokers of the report. Those that are not registered now are silent.

    Returns:
        The owners by group. It is empty if no name server answers or the time is over: the report works without it.
    """

    async def ask(engine: ClientEngine) -> dict[str, GroupOwners]:
        return await ask_owners(engine, groups[:GROUPS_MAX], brokers=brokers)

    try:
        return live.run(options, ask, timeout_ms=live.REQUEST_TIMEOUT_MS + 2 * ASK_TIMEOUT_MS)
    except (ClientError, TimeoutError) as error:
        log.warning("the owners of queues are unknown", reason=f"{type(error).__name__}: {error}")
        return {}


def owners_of_topic(group: GroupOwners, topic: str) -> list[dict[str, Any]] | None:
    """Return the clients of a group, each with its number of queues of a topic.

    Returns None if no client is known and at least one broker did not answer.
    """
    if not group.clients and group.silent:
        return None
    return _shown(group.clients.values(), lambda queue: queue[0] == topic)


def owners_of_queue(group: GroupOwners, topic: str, broker: str, queue_id: int) -> list[dict[str, Any]] | None:
    """Return the clients that report a queue as their own: none or several while the queue moves between clients.

    Returns None if no client reports it and some brokers or clients did not answer.
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


async def ask_owners(
    engine: ClientEngine, groups: Sequence[str], *, brokers: Collection[str] = ()
) -> dict[str, GroupOwners]:
    """Ask brokers for the clients of groups, and each client for its queues; `brokers` as for `read_owners`.

    Raises:
        ClientError: No name server answers.
    """
    registered = (await engine.cluster_info()).broker_addr_table
    found = {group: GroupOwners(silent=len({*brokers, *registered})) for group in groups}
    places = [(data.master_address, group) for data in registered.values() for group in groups]
    await _gather([_fetch_clients(engine, address, group, found[group]) for address, group in places])
    clients = [(group, client) for group in groups for client in found[group].clients.values()][:CLIENTS_MAX]
    await _gather([_fetch_queues(engine, group, client) for group, client in clients])
    return found


async def _gather(requests: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the requests, REQUESTS_MAX at a time. Cancel the requests that are not answered in time."""
    turns = asyncio.Semaphore(REQUESTS_MAX)

    async def one(request: Coroutine[Any, Any, None]) -> None:
        async with turns:
            await request

    tasks = [asyncio.ensure_future(one(request)) for request in requests]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=ASK_TIMEOUT_MS / 1_000)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch_clients(engine: ClientEngine, address: str | None, group: str, found: GroupOwners) -> None:
    if address is None:
        return
    try:
        header = GetConsumerConnectionListHeader(consumer_group=group)
        response = await engine.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        connections = read_body(ConsumerConnection.decode, response, address).connections
    except BrokerError as error:
        if error.code not in _NO_CONSUMER_CODES:
            return
        connections = ()
    except ClientError:
        return
    found.silent -= 1
    for one in connections:
        host = one.client_addr.lstrip("/").rpartition(":")[0].strip("[]") or one.client_addr
        found.clients.setdefault(one.client_id, Client(one.client_id, host, address))


async def _fetch_queues(engine: ClientEngine, group: str, client: Client) -> None:
    header = GetConsumerRunningInfoHeader(consumer_group=group, client_id=client.client_id, jstack_enable=False)
    try:
        response = await engine.call(
            client.address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=ASK_TIMEOUT_MS
        )
        info = read_body(ConsumerRunningInfo.decode, response, client.address)
    except ClientError:
        return
    # A queue that the client has dropped belongs to another client by now.
    client.queues = frozenset(
        (queue.topic, queue.broker_name, queue.queue_id) for queue, state in info.queues.items() if not state.droped
    )
