"""A broker without a process: its real parts over a file system in memory, virtual time and joined channels."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from gantry.model.address import Address, pack_host
from gantry.model.message import encode_properties
from gantry.model.uniqkey import UniqueKeyGenerator
from gantry.remoting.aio import RemotingServer
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RemotingError
from gantry.remoting.headers import PullMessageHeader, SendMessageHeader, SendMessageHeaderV2
from gantry.runtime.rng import Rng
from gantry.runtime.workers import InlineWorker, Worker
from services.broker.assembly import Broker
from services.broker.core import Core, Runtime
from services.broker.features import FEATURES, Feature, build_handlers
from services.broker.identity import BrokerIdentity
from services.broker.processors.send import TYPED_HEADERS
from services.broker.processors.sendparts import note_peer
from services.broker.settings import BrokerSettings
from services.broker.store.messagestore import MessageStore
from services.broker.timer import feature as timer
from services.broker.timers import every, timers
from tests.support.connectionpair import ConnectionPair
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock

IDENTITY = BrokerIdentity("C", "broker-a", 0, "10.0.0.5:10911", "10.0.0.5:10912", Address("10.0.0.5", 10911))
SMALL: Mapping[str, Any] = {
    "broker_cluster_name": "C",
    "store_path_root_dir": "/data/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 6000,
    "mapped_file_size_timer_log": 1 << 20,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "max_message_size": 64 * 1024,
}

_SMALL_WHEEL = partial(timer.build, slots=512)
WITH_SMALL_WHEEL = tuple(_SMALL_WHEEL if each is timer.build else each for each in FEATURES)
"""The features with a timer wheel of eight minutes. Its slots come round in a test, and copies of it are small."""


class UnreachableClient:
    """A client that reaches no name server."""

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        raise RemotingError(f"{address}: nobody there")

    def connected(self, address: str) -> None:
        return None


class BrokerUnit:
    """A running broker; use it with `async with`."""

    def __init__(
        self,
        *,
        files: Any = None,
        client: Any = None,
        features: Sequence[Feature] = FEATURES,
        timer_interval_ms_min: int = 0,
        **settings: Any,
    ) -> None:
        """Create it; `timer_interval_ms_min` makes timers slower, for tests that take hours of virtual time."""
        self.clock = VirtualClock()
        self.files = files or MemFileSystem(self.clock)
        self.settings = BrokerSettings(**{**SMALL, **settings})
        self.flush_is_stuck = False
        self.readers: list[Worker] = [InlineWorker()]
        self._client = client or UnreachableClient()
        self._features = features
        self._timer_interval_ms_min = timer_interval_ms_min
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        runtime = Runtime(self.clock, Rng(7), loop, _at_once, self.readers)
        core = Core(self.settings, runtime, lambda: self.store)
        self.store = MessageStore(
            self.settings,
            files=self.files,
            clock=self.clock,
            store_host=pack_host(IDENTITY.store_host),
            on_arrival=core.long_polling.arrived,
            on_flushed=lambda offset: None if self.flush_is_stuck else core.waiters.flushed_from_thread(offset),
            on_flush_failed=core.waiters.flush_failed_from_thread,
            **{name: InlineWorker() for name in ("flush_worker", "making_worker", "chores_worker")},
        )
        self._make_folder()
        self.store.start()
        self.broker = Broker(
            self.settings,
            IDENTITY,
            runtime,
            core,
            self.store,
            client=self._client,
            build_handlers=lambda broker: build_handlers(broker, self._features),
            unique_keys=UniqueKeyGenerator(self.clock, "10.0.0.5", 1, 2),
            physical_memory_bytes=1 << 30,
        )
        self.server = RemotingServer(
            name="broker",
            handlers=self.broker.handlers,
            headers=TYPED_HEADERS,
            clock=self.clock,
            on_connect=note_peer,
            on_close=self.broker.disconnected,
        )
        least_ms = self._timer_interval_ms_min
        work = [every(max(interval, least_ms), job) for _, interval, job in timers(self.broker)]
        self._tasks = [loop.create_task(job) for job in (*work, self.broker.persistence.run())]
        self.connection = self.connect()
        return self

    def _make_folder(self) -> None:
        self.files.make_dirs(self.settings.store_path_root_dir.rpartition("/")[0])
        self.files.sync_dir("/")

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.connection.client.abort("test is over")
        if self.store.lost_reason() is None:
            self.broker.finish()
            self.broker.save_all()
        self.store.stop()

    def connect(self, handlers: Mapping[int, Any] | None = None) -> ConnectionPair:
        """Open one more connection."""
        return ConnectionPair(self.server, self.clock, handlers=handlers)

    async def ask(
        self,
        code: int,
        header: Any = None,
        *,
        body: bytes | None = None,
        ext: dict[str, str] | None = None,
        connection: ConnectionPair | None = None,
        timeout_ms: int = 60_000,
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        channel = (connection or self.connection).client
        return await channel.request(RemotingCommand.request(code, header, body=body, ext=ext), timeout_ms)

    async def send(
        self, topic: str = "T", body: bytes = b"hello", *, queue_id: int = 0, properties: Any = None, **changes: Any
    ) -> RemotingCommand:
        """Send one message and return the answer."""
        header = send_header(topic, queue_id=queue_id, properties=properties, **changes)
        return await self.ask(RequestCode.SEND_MESSAGE_V2, header, body=body)

    async def pull(self, topic: str = "T", offset: int = 0, **changes: Any) -> RemotingCommand:
        """Pull and return the answer."""
        timeout_ms = changes.pop("timeout_ms", 60_000)
        return await self.ask(RequestCode.PULL_MESSAGE, pull_header(topic, offset, **changes), timeout_ms=timeout_ms)

    def change_settings(self, **changes: Any) -> None:
        """Change settings in force, as request 25 does."""
        live_settings = self.broker.core.live_settings
        live_settings.follow(replace(live_settings.current, **changes))

    async def make_topic(self, topic: str = "T", queues: int = 4) -> None:
        """Create a topic as a tool would."""
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def _at_once(work: Callable[[], None]) -> None:
    work()


def send_header(topic: str = "T", *, properties: Any = None, **changes: Any) -> SendMessageHeaderV2:
    """Return a send's header; `properties` is a text or a mapping."""
    text = encode_properties(properties).decode() if isinstance(properties, Mapping) else properties
    values: dict[str, Any] = {
        "producer_group": "pg",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
    }
    return SendMessageHeaderV2(topic=topic, properties=text, **{**values, **changes})


def pull_header(topic: str = "T", offset: int = 0, **changes: Any) -> PullMessageHeader:
    """Return a pull's header: inline subscription to everything, no waiting."""
    values: dict[str, Any] = {
        "consumer_group": "g",
        "queue_id": 0,
        "max_msg_nums": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 0,
        "subscription": "*",
    }
    return PullMessageHeader(topic=topic, queue_offset=offset, **{**values, **changes})


__all__ = [
    "IDENTITY",
    "WITH_SMALL_WHEEL",
    "BrokerUnit",
    "SendMessageHeader",
    "UnreachableClient",
    "pull_header",
    "send_header",
]
