import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import KVTable, RegisterBrokerBody, TopicConfigSerializeWrapper
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError
from services.broker.registration import (
    ANNOUNCE_TIMEOUT_MS,
    ORDER_TOPICS_BYTES_MAX,
    RETRY_DELAY_MS,
    Registration,
    RegistrationBody,
)
from services.broker.registry.topics import TopicTable, with_perm_of_broker
from services.broker.settings import BrokerSettings, LiveSettings
from tests.support.brokerunit import IDENTITY

PERIOD_MS = 30_000


class NameServers:
    """Name servers that record their requests; one may be away, slow, or freshly restarted."""

    def __init__(self) -> None:
        self.told: dict[str, list[set[str]]] = {"a": [], "b": []}
        self.perms: dict[str, int] = {}
        self.away: set[str] = set()
        self.forgetful: set[str] = set()
        self.delay_s = 0.0
        self.unregistered: list[str] = []
        self.order_topics: bytes | None = None

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        await asyncio.sleep(self.delay_s)
        if address in self.away:
            raise ConnectError(address, "nobody there")
        if command.code == RequestCode.UNREGISTER_BROKER:
            self.unregistered.append(address)
            return RemotingCommand.response_to(command, 0)
        assert command.ext_fields["brokerAddr"] == "10.0.0.5:10911"
        table = RegisterBrokerBody.decode(command.body_bytes).topics.topic_config_table
        if address in self.forgetful and len(table) == 1:
            return RemotingCommand.response_to(command, 1, remark="register broker failed")
        self.told[address].append(set(table))
        self.perms |= {name: config.perm for name, config in table.items()}
        return RemotingCommand.response_to(command, 0, body=self.order_topics)

    def connected(self, address: str) -> object | None:
        return None if address in self.away else self


class Scene:
    def __init__(self) -> None:
        self.servers = NameServers()
        self.topics = TopicTable()
        self.live_settings = LiveSettings(BrokerSettings())
        for topic in ("S1", "S2"):
            self.topics.put(TopicConfig(topic), 1)
        self.registration = Registration(
            ("a", "b"),
            identity=IDENTITY,
            topics=self.topics,
            live_settings=self.live_settings,
            client=self.servers,
            period_ms=PERIOD_MS,
            timeout_ms=1000,
            on_order_topics=lambda topics: self.topics.mark_ordered(topics, 2),
        )
        self.topics.on_change = self.registration.topic_changed
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self.registration.maintain(address)) for address in self.registration.addresses]

    def take(self, address: str = "a") -> list[set[str]]:
        told, self.servers.told[address] = self.servers.told[address], []
        return told


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    for task in scene.tasks:
        task.cancel()
    await asyncio.gather(*scene.tasks, return_exceptions=True)


async def test_every_name_server_gets_a_full_registration_at_start_and_every_period(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    assert scene.registration.registered_count == 2
    assert (scene.take("a"), scene.take("b")) == ([{"S1", "S2"}], [{"S1", "S2"}])
    await asyncio.sleep(PERIOD_MS * 3.5 / 1000)
    assert (len(scene.take("a")), len(scene.take("b"))) == (3, 3)


async def test_one_changed_topic_is_registered_alone_and_several_together(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.take()
    scene.topics.put(TopicConfig("T"), 2)
    await scene.registration.wait_until_announced()
    assert scene.take() == [{"T"}]
    for topic in ("U", "V"):
        scene.topics.put(TopicConfig(topic), 3)
    await scene.registration.wait_until_announced()
    assert scene.take() == [{"U", "V"}]
    scene.topics.remove("U", 4)
    await scene.registration.wait_until_announced()
    assert scene.take() == [set()]
    await scene.registration.wait_until_announced()  # No announcement is left to wait for.


async def test_an_unavailable_name_server_delays_no_other_and_is_found_again(scene: Scene) -> None:
    scene.servers.away.add("b")
    scene.start()
    await scene.registration.first_round()
    assert scene.registration.registered_count == 1
    scene.topics.put(TopicConfig("T"), 2)
    await scene.registration.wait_until_announced()
    assert scene.take("a")[-1] == {"T"}
    scene.servers.away.clear()
    await asyncio.sleep(RETRY_DELAY_MS * 1.5 / 1000)
    assert scene.take("b") == [{"S1", "S2", "T"}]


async def test_a_restarted_name_server_gets_a_full_registration_at_once(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.take()
    scene.servers.forgetful.add("a")
    scene.topics.put(TopicConfig("T"), 2)
    await scene.registration.wait_until_announced()
    assert scene.take() == [{"S1", "S2", "T"}]


async def test_after_a_lost_connection_everything_is_registered_again_at_once(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.take()
    scene.registration.connection_lost("a")
    scene.registration.connection_lost("nobody")
    await asyncio.sleep(0.1)
    assert scene.take() == [{"S1", "S2"}]


async def test_the_brokers_permission_narrows_that_of_topics(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.live_settings.follow(BrokerSettings(broker_permission=4))
    scene.registration.permission_changed(5)
    await scene.registration.wait_until_announced()
    assert scene.servers.perms == {"S1": 4, "S2": 4}


async def test_a_hanging_name_server_delays_an_announcement_only_briefly(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.servers.delay_s = 500.0
    scene.topics.put(TopicConfig("T"), 2)
    started_s = asyncio.get_running_loop().time()
    await scene.registration.wait_until_announced()
    assert asyncio.get_running_loop().time() - started_s <= ANNOUNCE_TIMEOUT_MS / 1000 + 0.1


async def test_unregistration_goes_to_reachable_name_servers(scene: Scene) -> None:
    scene.start()
    await scene.registration.first_round()
    scene.servers.away.add("b")
    await scene.registration.unregister_all()
    assert scene.servers.unregistered == ["a"]


async def test_without_name_servers_there_is_no_wait() -> None:
    scene = Scene()
    alone = Registration(
        (),
        identity=IDENTITY,
        topics=scene.topics,
        live_settings=scene.live_settings,
        client=scene.servers,
        period_ms=1,
        timeout_ms=1,
    )
    await alone.first_round()
    await alone.wait_until_announced()
    await alone.unregister_all()
    assert alone.registered_count == 0


async def test_a_large_table_is_encoded_in_slices_with_the_result_of_a_single_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.broker.registration.SLICE_TOPICS", 10)
    topics, live_settings = TopicTable(), LiveSettings(BrokerSettings(broker_permission=4))
    for number in range(35):
        topics.put(TopicConfig(f"T{number}", 2, 3, 6), number)
    body = RegistrationBody(topics, live_settings)
    topics.on_change = body.topic_changed
    making = asyncio.ensure_future(body.current())
    await asyncio.sleep(0)
    topics.put(TopicConfig("T0", 9, 9, 6), 100)
    topics.put(TopicConfig("late", 1, 1, 6), 101)
    topics.remove("T7", 102)
    version, data = await making
    assert version == topics.version
    assert RegisterBrokerBody.decode(data) == told(topics, live_settings)
    assert (await body.current())[1] is data
    live_settings.follow(BrokerSettings(broker_permission=6))
    assert RegisterBrokerBody.decode((await body.current())[1]) == told(topics, live_settings)


async def test_the_body_equals_that_of_the_general_encoder() -> None:
    topics, live_settings = TopicTable(), LiveSettings(BrokerSettings())
    topics.put(TopicConfig("T", 2, 3, 6, attributes={"message.type": "FIFO"}), 1)
    assert (await RegistrationBody(topics, live_settings).current())[1] == told(topics, live_settings).encode()


def told(topics: TopicTable, live_settings: LiveSettings) -> RegisterBrokerBody:
    table = {
        name: with_perm_of_broker(config, live_settings.current.broker_permission)
        for name, config in topics.all().items()
    }
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, topics.version))


async def test_topics_with_an_order_configuration_become_ordered_and_stay_so(scene: Scene) -> None:
    scene.servers.order_topics = KVTable(table={"S1": "broker-a:4", "Unknown": "broker-a:4"}).encode()
    scene.start()
    await asyncio.sleep(1)
    orders = {name: config.order for name, config in scene.topics.all().items()}
    assert orders == {"S1": True, "S2": False}
    assert scene.take() == [{"S1", "S2"}, {"S1"}], "the flag is announced once"
    scene.servers.order_topics = KVTable(table={}).encode()
    await asyncio.sleep(2 * PERIOD_MS / 1000)
    assert scene.topics.all()["S1"].order


@pytest.mark.parametrize("body", [b"{", b" " * (ORDER_TOPICS_BYTES_MAX + 1)])
async def test_an_unreadable_list_of_order_topics_does_not_spoil_the_registration(scene: Scene, body: bytes) -> None:
    scene.servers.order_topics = body
    scene.start()
    await asyncio.sleep(1)
    assert scene.registration.registered_count == 2
