"""The cluster: name servers and brokers, and whether they answer."""

import asyncio
from collections.abc import Mapping
from typing import Any

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.route import MASTER_ID
from gantry.remoting.bodies.tables import KVTable
from gantry.remoting.codes import RequestCode
from gantry.remoting.errors import BodyError
from services.gateway.schemas.times import format_time
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.metadata import Metadata


class Cluster:
    """Reads the state of the cluster. The caller has checked the right `admin`."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, metadata: Metadata) -> None:
        self._engine = engine
        self._brokers = brokers
        self._metadata = metadata

    async def show(self) -> dict[str, Any]:
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
        metadata = "available" if await self._metadata.is_available() else "unavailable"
        return {"name_servers": await name_servers, "brokers": await brokers, "metadata": metadata}

    async def _name_server(self, address: str) -> dict[str, Any]:
        try:
            await self._engine.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        except ClientError as error:
            return {"address": address, "reachable": False, "detail": str(error)}
        return {"address": address, "reachable": True, "detail": None}

    async def _broker(
        self, cluster: str, name: str, broker_id: int, address: str, *, is_missing: bool
    ) -> dict[str, Any]:
        view: dict[str, Any] = {
            "cluster": cluster,
            "broker": name,
            "broker_id": broker_id,
            "role": "master" if broker_id == MASTER_ID else "slave",
            "address": address,
            "reachable": True,
            "detail": "name servers do not list it at the moment" if is_missing else None,
            "version": None,
            "store": None,
        }
        try:
            response = await self._engine.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            facts = KVTable.decode(response.body_bytes).table
        except (ClientError, BodyError) as error:
            return {**view, "reachable": False, "detail": str(error)}
        return {**view, "version": facts.get("brokerVersionDesc"), "store": store_view(facts)}


def store_view(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the store's figures from a broker's runtime information; null for those that are missing."""
    return {
        "disk_ratio": _number(facts.get("commitLogDiskRatio")),
        "min_physical_offset": _digits(facts.get("commitLogMinOffset")),
        "max_physical_offset": _digits(facts.get("commitLogMaxOffset")),
        "dispatch_behind_bytes": _integer(facts.get("dispatchBehindBytes")),
        "earliest_stored_at": _time(facts.get("earliestMessageTimeStamp")),
        "booted_at": _time(facts.get("bootTimestamp")),
        "put_tps": _number((facts.get("putTps") or "").partition(" ")[0]),
        "messages_put_today": _since(facts.get("msgPutTotalTodayNow"), facts.get("msgPutTotalTodayMorning")),
    }


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


def _digits(text: str | None) -> str | None:
    number = _integer(text)
    return str(number) if number is not None and number >= 0 else None


def _time(text: str | None) -> str | None:
    at_ms = _integer(text)
    return format_time(at_ms) if at_ms is not None and at_ms > 0 else None


def _since(now: str | None, before: str | None) -> int | None:
    end, start = _integer(now), _integer(before)
    return end - start if end is not None and start is not None else None
