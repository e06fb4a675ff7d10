"""The members of the cluster: name servers and brokers, and whether they answer."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.route import MASTER_ID
from gantry.model.topic import Perm
from gantry.remoting.bodies.tables import KVTable
from gantry.remoting.codes import RequestCode
from gantry.remoting.errors import BodyError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.metadata import Metadata


@dataclass(frozen=True, slots=True)
class NameServerState:
    """A name server; `failure` is the reason why it does not answer, else None."""

    address: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The figures of a broker's store; None for those that the broker does not report.

    Attributes:
        disk_ratio: Used part of the disk, 0 to 1.
        min_physical_offset: First byte of the CommitLog that is still there.
        max_physical_offset: End of the CommitLog, in bytes.
        dispatch_behind_bytes: Part of the CommitLog that dispatch has not read yet.
        earliest_stored_at_ms: Store time of the first message.
        booted_at_ms: Start of the broker.
        put_tps: Messages stored per second.
        messages_put_today: Messages stored since midnight.
        flush_behind_bytes: Part of the CommitLog that is not on disk yet.
        is_writable: Whether the store takes messages.
        reason: Why it takes none.
        get_tps: Messages delivered per second.
        put_latency_p99_ms: 99th percentile of the time of a send in the broker.
        messages_got_today: Messages delivered since midnight.
    """

    disk_ratio: float | None
    min_physical_offset: int | None
    max_physical_offset: int | None
    dispatch_behind_bytes: int | None
    earliest_stored_at_ms: int | None
    booted_at_ms: int | None
    put_tps: float | None
    messages_put_today: int | None
    flush_behind_bytes: int | None = None
    is_writable: bool | None = None
    reason: str | None = None
    get_tps: float | None = None
    put_latency_p99_ms: float | None = None
    messages_got_today: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker.

    Attributes:
        cluster: Name of the cluster.
        broker: Name of the broker set.
        broker_id: Id of the broker in its set.
        address: Address, `host:port`.
        is_missing: Whether name servers no longer list the broker set.
        failure: Reason why the broker does not answer, else None.
        is_drained: Whether the broker takes no messages because it lacks the permission to be written; None if it does
            not answer, or does not tell.
        version: Version that the broker reports; None if it does not answer, or reports none.
        store: Figures of its store; None if it does not answer.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    is_missing: bool
    failure: str | None = None
    is_drained: bool | None = None
    version: str | None = None
    store: StoreFigures | None = None

    @property
    def is_master(self) -> bool:
        """Whether the broker is the master of its set."""
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All members of the cluster, and whether Postgres answers."""

    name_servers: Sequence[NameServerState]
    brokers: Sequence[BrokerState]
    is_metadata_available: bool


class Cluster:
    """Reads the state of the cluster. The caller has checked the right `admin`."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata

    async def state(self) -> ClusterState:
        """Return all name servers and brokers with their current state. Raises ProblemError (503)."""
        sets = await self._brokers.sets(fresh=True)
        missing = set(await self._brokers.missing())
        members = [
            (broker.cluster, name, broker_id, address)
            for name, broker in sorted(sets.items())
            for broker_id, address in sorted(broker.broker_addrs.items())
        ]
        name_servers = asyncio.gather(*(self._name_server(address) for address in self._engine.settings.namesrv))
        brokers = asyncio.gather(*(self._broker(*member, is_missing=member[1] in missing) for member in members))
        is_available = await self._metadata.is_available()
        return ClusterState(await name_servers, await brokers, is_available)

    async def _name_server(self, address: str) -> NameServerState:
        try:
            await self._engine.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        except ClientError as error:
            return NameServerState(address, str(error))
        return NameServerState(address, None)

    async def _broker(
        self, cluster: str, broker: str, broker_id: int, address: str, *, is_missing: bool
    ) -> BrokerState:
        state = BrokerState(cluster, broker, broker_id, address, is_missing)
        try:
            response = await self._engine.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.decode(response.body_bytes).table
        except (ClientError, BodyError) as error:
            return replace(state, failure=str(error))
        permission = _integer(table.get("gantryBrokerPermission"))
        return replace(
            state,
            is_drained=None if permission is None else not permission & Perm.WRITE,
            version=table.get("brokerVersionDesc"),
            store=read_store_figures(table),
        )


_FLAGS: Final = {"true": True, "false": False}


def read_store_figures(table: Mapping[str, str]) -> StoreFigures:
    """Return the store's figures from a broker's runtime information; pure."""
    return StoreFigures(
        disk_ratio=_number(table.get("commitLogDiskRatio")),
        min_physical_offset=_offset(table.get("commitLogMinOffset")),
        max_physical_offset=_offset(table.get("commitLogMaxOffset")),
        dispatch_behind_bytes=_integer(table.get("dispatchBehindBytes")),
        earliest_stored_at_ms=_time_ms(table.get("earliestMessageTimeStamp")),
        booted_at_ms=_time_ms(table.get("bootTimestamp")),
        put_tps=_number((table.get("putTps") or "").partition(" ")[0]),
        messages_put_today=_difference(table.get("msgPutTotalTodayNow"), table.get("msgPutTotalTodayMorning")),
        flush_behind_bytes=_integer(table.get("gantryFlushBehindBytes")),
        is_writable=_FLAGS.get(table.get("gantryStoreWritable") or ""),
        reason=table.get("gantryStoreReason") or None,
        get_tps=_number((table.get("getTransferredTps") or "").partition(" ")[0]),
        put_latency_p99_ms=_number(table.get("putLatency99")),
        messages_got_today=_difference(table.get("msgGetTotalTodayNow"), table.get("msgGetTotalTodayMorning")),
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _offset(text: str | None) -> int | None:
    number = _integer(text)
    return number if number is not None and number >= 0 else None


def _time_ms(text: str | None) -> int | None:
    at_ms = _integer(text)
    return at_ms if at_ms is not None and at_ms > 0 else None


def _difference(end: str | None, start: str | None) -> int | None:
    last, first = _integer(end), _integer(start)
    return last - first if last is not None and first is not None else None
