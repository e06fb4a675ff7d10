"""Topics on the name servers: order configurations, and deletions.

An order configuration says how many queues an ordered topic has on each broker. Clients spread ordering keys over these
queues. Without it, they use the brokers that are registered at that moment, so a key moves to another queue while its
broker is away. Brokers read it from the name servers at each registration. RocketMQ 4.x brokers clear the order flag
of a topic that has none.

Name servers do not tell each other, so each of them gets every change. One that was away then gets it from `repair_orders`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError
from gantry.remoting.bodies import KVTable
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import BodyError
from gantry.remoting.headers.kv import DeleteKvConfigHeader, GetKvListHeader, PutKvConfigHeader
from gantry.remoting.headers.namesrv import DeleteTopicInNamesrvHeader
from gantry.runtime.telemetry import logger

log = logger("gateway.namesrvtopics")

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


class NameServerTopics:
    """Tells the name servers about topics. Their errors are only logged."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine

    async def put_order(self, topic: str, queues: Mapping[str, int]) -> None:
        """Set the order configuration of a topic: the number of its write queues on each broker."""
        await self._call_all(RequestCode.PUT_KV_CONFIG, _put_header(topic, _text(queues)))

    async def delete_topic(self, topic: str) -> None:
        """Delete the routes and the order configuration of a topic."""
        # A name server that is away learns of the routes from the brokers' registrations when it is back.
        await self._call_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader(topic=topic))
        await self.delete_order(topic)

    async def delete_order(self, topic: str) -> None:
        """Remove the order configuration of a topic, if there is one."""
        await self._call_all(RequestCode.DELETE_KV_CONFIG, DeleteKvConfigHeader(namespace=ORDER_NAMESPACE, key=topic))

    async def repair_orders(self, wanted: Mapping[str, Mapping[str, int]]) -> None:
        """Add the order configurations that name servers lack.

        Args:
            wanted: Topic → the number of its write queues on each broker.
        """
        if not wanted:
            return
        tables = {address: await self._table(address) for address in self._engine.settings.namesrv}
        known = {address: table for address, table in tables.items() if table is not None}
        for address, topic, value in missing_entries({topic: _text(queues) for topic, queues in wanted.items()}, known):
            log.info("an order configuration is repaired", address=address, topic=topic, value=value)
            await self._call(address, RequestCode.PUT_KV_CONFIG, _put_header(topic, value))

    async def _table(self, address: str) -> Mapping[str, str] | None:
        """Return all order configurations of a name server, or None if it does not answer."""
        header = GetKvListHeader(namespace=ORDER_NAMESPACE)
        try:
            response = await self._engine.call(address, RequestCode.GET_KVLIST_BY_NAMESPACE, header)
            return KVTable.decode(response.body_bytes).table
        except BrokerError as error:
            return {} if error.code == ResponseCode.QUERY_NOT_FOUND else None
        except (ClientError, BodyError):
            return None

    async def _call_all(self, code: RequestCode, header: Any) -> None:
        await asyncio.gather(*(self._call(address, code, header) for address in self._engine.settings.namesrv))

    async def _call(self, address: str, code: RequestCode, header: Any) -> None:
        try:
            await self._engine.call(address, code, header)
        except ClientError as error:
            log.warning("a name server was not updated", address=address, code=code.name, error=str(error))


def missing_entries(
    wanted: Mapping[str, str], tables: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield address, topic and value of each entry that a name server lacks; pure.

    The order of brokers in a value decides which queue a key has. So a value that a tool has written to all name
    servers stays. It is replaced only where another name server has the wanted value: then this one missed a change.
    """
    for topic, text in wanted.items():
        found = [table[topic] for table in tables.values() if topic in table]
        value = text if text in found or not found else found[0]
        for address, table in tables.items():
            if topic not in table or (value == text and table[topic] != text):
                yield address, topic, value


def _text(queues: Mapping[str, int]) -> str:
    return ";".join(f"{broker}:{count}" for broker, count in queues.items())


def _put_header(topic: str, value: str) -> PutKvConfigHeader:
    return PutKvConfigHeader(namespace=ORDER_NAMESPACE, key=topic, value=value)
