"""Gateways without processes: the use cases of consuming by receipt, over a real broker in memory and virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.group import parse_tag_expression
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError
from gantry.runtime.rng import Rng
from services.broker.store.settings import FlushDiskType
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import GroupKind, TopicKind
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.receiving.pulling import Pull, Pulling
from services.gateway.usecases.receiving.settling import Settled, Settling
from services.gateway.views.receiving import PulledMessages
from tests.support.brokerunit import BrokerUnit
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport

BROKER = "broker-a"
ADDRESS = f"{BROKER}:10911"
KEY = bytes(range(32))
SETTINGS = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


class KnownKey:
    """The key of receipts, as all gateways know it."""

    def require(self) -> bytes:
        return KEY


class Caller:
    """A client of a gateway."""

    key_id = "key-1"

    def require_presence(self) -> None:
        pass

    def require_room(self) -> None:
        pass

    @contextmanager
    def waiting(self):
        yield

    async def take_turn(self) -> None:
        pass


class BrokerTransport(ScriptedTransport):
    """A transport with a scripted name server and a real broker, which may be away."""

    def __init__(self, home: "PullUnit") -> None:
        super().__init__()
        self._home = home
        self._channel: Any = None
        self._unit: BrokerUnit | None = None

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        if address != ADDRESS:
            return await super().invoke(address, command, timeout_ms=timeout_ms)
        unit = self._home.unit
        if unit is None:
            raise ConnectError(address, "connection refused")
        if unit is not self._unit:
            self._unit, self._channel = unit, unit.connect().client
        return await self._channel.request(command, timeout_ms)

    def cut(self) -> None:
        """Break the connection to the broker: the answers on their way are lost."""
        if self._channel is not None:
            self._channel.abort("cut")
            self._unit = self._channel = None


class TakenMessage(NamedTuple):
    """A message as a client reads it in MessagePack."""

    body: bytes
    reconsume_times: int
    topic: str


class GatewayUnit:
    """The use cases of one gateway."""

    def __init__(self, home: "PullUnit", seed: int) -> None:
        self._home = home
        self._seed = seed

    async def start(self) -> None:
        clock = self._home.clock
        self.transport = BrokerTransport(self._home)
        ScriptedCluster(self.transport).topic("T", BROKER, queues=4)
        settings = ClientSettings(namesrv=("ns:1",), compress_over_bytes=0)
        engine = ClientEngine(settings, clock=clock, rng=Rng(self._seed), make_transport=self.transport.make)
        await engine.start()
        brokers, metrics = Brokers(engine, clock=clock), GatewayMetrics()
        topics = Presence(TopicKind(engine), Metadata(None), brokers, engine)
        reader = QueueReader(engine, brokers, metrics, clock=clock, topics=topics, is_stopping=lambda: False)
        self.pulling = Pulling(
            engine, reader, metrics, KnownKey(), clock=clock, is_stopping=lambda: False, on_pull=lambda *_: None
        )
        self.settling = Settling(engine, brokers, GroupKind(engine), KnownKey())
        self._engine = engine

    async def stop(self) -> None:
        await self.pulling.close()
        await self._engine.stop()

    async def pull(
        self, group: str = "g", *, wait_ms: int = 0, max_messages: int = 32, invisible_ms: int = 10_000, **more: Any
    ) -> list[tuple[TakenMessage, str]]:
        """Pull from topic T and return messages with their receipts."""
        subscription = parse_tag_expression("T", more.pop("expression", "*"))
        wanted = Pull(group, subscription, max_messages, wait_ms, invisible_ms, **more)
        async with self.pulling.pull(wanted, Caller()) as pulled:
            assert pulled.damaged == []
            shown = PulledMessages().show(pulled, binary=True)
        return [(TakenMessage(one.body, one.reconsume_times, one.topic), one.receipt) for one in shown]

    async def ack(self, receipts: Sequence[str], group: str = "g") -> list[Settled]:
        return await self.settling.ack(group, receipts, lambda topic: True)

    async def nack(self, receipts: Sequence[str], delay_ms: int | None = None) -> list[Settled]:
        return await self.settling.nack("g", receipts, lambda topic: True, delay_ms=delay_ms)

    async def extend(self, receipts: Sequence[str], invisible_ms: int = 10_000) -> list[Settled]:
        return await self.settling.extend("g", receipts, lambda topic: True, invisible_ms=invisible_ms)


class PullUnit:
    """Some gateways before one broker with topic T and group g; use it with `async with`."""

    def __init__(self, gateways: int = 2) -> None:
        self.unit: BrokerUnit | None = None
        self.gateways = [GatewayUnit(self, seed) for seed in range(gateways)]

    async def __aenter__(self) -> Self:
        self.unit = await BrokerUnit(**SETTINGS).__aenter__()
        self.clock = self.unit.clock
        await self.unit.make_topic("T", 4)
        for gateway in self.gateways:
            await gateway.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for gateway in self.gateways:
            await gateway.stop()
        assert self.unit is not None
        await self.unit.__aexit__(None, None, None)

    async def send(self, *bodies: str) -> None:
        assert self.unit is not None
        for number, body in enumerate(bodies):
            properties = {"UNIQ_KEY": body}
            answer = await self.unit.send("T", body.encode(), queue_id=number % 4, properties=properties)
            assert answer.code == 0, answer.remark

    async def crash_broker(self, rng: Rng, *, away_s: float = 1.0) -> None:
        """Stop the broker as a power cut does, and start it again on what is left."""
        old = self.unit
        assert old is not None
        files = old.files.crash_clone(rng)
        self.unit = None
        for gateway in self.gateways:
            gateway.transport.cut()
        await old.__aexit__(None, None, None)
        await asyncio.sleep(away_s)
        self.unit = await BrokerUnit(files=files, **SETTINGS).__aenter__()

    async def crash_gateway(self, number: int) -> None:
        """Stop a gateway, and start it again without any memory."""
        gateway = self.gateways[number]
        gateway.transport.cut()
        await gateway.stop()
        await gateway.start()
