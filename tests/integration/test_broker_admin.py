"""The broker as a process: starting, failing to start, restarting name servers, settings, metrics."""

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from gantry.remoting.bodies import ClusterInfo, TopicList, decode_properties_text
from gantry.remoting.bodies.queuestates import QueueStates
from gantry.remoting.codes import RequestCode
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of, wait_until
from tests.support.heartbeats import consumer_beat


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    with NamesrvProcess(tmp_path / "ns") as process:
        yield process


@pytest.fixture
async def peer(tmp_path: Path, namesrv: NamesrvProcess) -> AsyncIterator[Peer]:
    with BrokerProcess(tmp_path / "broker", namesrv=namesrv.address) as broker:
        async with peer_of(broker.address) as peer:
            yield peer


class TestNameServers:
    async def test_all_name_servers_are_told_and_an_unavailable_one_when_it_is_back(self, tmp_path: Path) -> None:
        with NamesrvProcess(tmp_path / "one") as one, NamesrvProcess(tmp_path / "two") as two:
            both = f"{one.address};{two.address}"
            port = int(two.address.rpartition(":")[2])
            two.kill()
            with BrokerProcess(tmp_path / "broker", namesrv=both) as broker:
                async with peer_of(broker.address) as peer:
                    await peer.make_topic("T")
                    assert await peer.route("T", one.address) == [broker.address]
                    with NamesrvProcess(tmp_path / "two again", port=port):
                        await wait_until(lambda: _has_route(peer, "T", two.address), "the second to know T")

    async def test_a_restarted_name_server_gets_every_registration(
        self, tmp_path: Path, peer: Peer, namesrv: NamesrvProcess
    ) -> None:
        await peer.make_topic("T")
        port = int(namesrv.address.rpartition(":")[2])
        namesrv.kill()
        with NamesrvProcess(tmp_path / "again", port=port) as again:
            await wait_until(lambda: _has_route(peer, "T", again.address), "T to be known again")
            assert await peer.route("TBW102", again.address) == [peer.address]
            answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, address=again.address)
            info = ClusterInfo.decode(answer.body_bytes)
            assert info.broker_addr_table["broker-a"].broker_addrs == {0: peer.address}

    async def test_a_deleted_topic_is_gone_after_a_restart_too(self, tmp_path: Path, namesrv: NamesrvProcess) -> None:
        with BrokerProcess(tmp_path / "broker", namesrv=namesrv.address) as broker:
            async with peer_of(broker.address) as peer:
                await peer.make_topic("T")
                await peer.send("T")
                await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
                await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": "T"}, address=namesrv.address)
            broker.kill()
            broker.start()
            async with peer_of(broker.address) as peer:
                assert (await peer.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T"})).code == 17
                assert await peer.route("T", namesrv.address) == []


async def _has_route(peer: Peer, topic: str, namesrv: str) -> bool:
    try:
        return await peer.route(topic, namesrv) == [peer.address]
    except OSError:
        return False


class TestSettings:
    async def test_settings_changed_by_request_25_are_in_force_after_a_restart(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path) as broker:
            async with peer_of(broker.address) as peer:
                body = b"defaultTopicQueueNums=2\nfileReservedTime=5\nbrokerName=other\n"
                answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
                assert (answer.code, "fileReservedTime" in str(answer.remark)) == (0, True)
            broker.kill()
            assert broker.kept("gantry-settings.json")["settings"]["file_reserved_time"] == "5"
            broker.start()
            async with peer_of(broker.address) as peer:
                answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
                shown = decode_properties_text(answer.body_bytes)
                assert (shown["defaultTopicQueueNums"], shown["fileReservedTime"]) == ("2", "5")
                assert shown["brokerName"] == "broker-a"  # The command line overrides saved settings.
                assert shown["listenPort"] == broker.address.rpartition(":")[2]

    async def test_file_environment_and_command_line(self, tmp_path: Path) -> None:
        file = tmp_path / "broker.toml"
        file.write_text('broker_cluster_name = "FromFile"\nbroker_name = "from-file"\nregion_id = "R1"\n')
        environment = {"GANTRY_BROKER_REGION_ID": "R2"}
        with BrokerProcess(tmp_path, "--config", str(file), environment=environment) as broker:
            async with peer_of(broker.address) as peer:
                answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
                shown = decode_properties_text(answer.body_bytes)
                assert (shown["brokerClusterName"], shown["brokerName"], shown["regionId"]) == ("C", "broker-a", "R2")
                assert (await peer.send()).ext_fields["MSG_REGION"] == "R2"

    async def test_fast_port_and_metrics(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, "--fast-port", "0", "--metrics-port", "0") as broker:
            async with peer_of(broker.facts["fast_address"]) as peer:
                await peer.make_topic("T", queues=1)
                await asyncio.gather(*(peer.send("T") for _ in range(3)))
                assert len(await peer.read_all("T")) == 3
                await peer.ask(RequestCode.HEART_BEAT, body=consumer_beat("a@1", "g", "T"))
            async with httpx.AsyncClient() as http:
                text = (await http.get(f"http://{broker.facts['metrics']}/metrics")).text
        assert re.search(r'rocketmq_messages_in_total\{[^}]*topic="T"\} 3\.0', text)
        assert re.search(r'rocketmq_messages_out_total\{[^}]*consumer_group="g"[^}]*\} 3\.0', text)
        assert re.search(r"gantry_broker_put_latency_milliseconds_count\{[^}]*\} 3\.0", text)
        assert re.search(r"gantry_broker_store_writable\{[^}]*\} 1\.0", text)


class TestRefusedStart:
    """A start that fails prints one line with the cause and the remedy, and exits with code 1."""

    def refusal(self, broker: BrokerProcess) -> str:
        broker.launch()
        try:
            assert broker.wait() == 1, broker.log
        finally:
            broker.kill()
        lines = [line for line in broker.log.splitlines() if not line.startswith("{")]
        assert len(lines) == 1, broker.log
        return lines[0]

    def test_a_port_in_use(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            line = self.refusal(BrokerProcess(tmp_path, port=port))
        assert line.startswith(f"broker: broker broker-a can't listen on 127.0.0.1:{port}: ")
        assert line.endswith("address already in use; stop what uses the address or choose another one")
        assert not (tmp_path / "store" / "abort").exists()

    def test_a_store_that_another_broker_runs_on(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "one") as running:
            line = self.refusal(BrokerProcess(tmp_path / "two", store=running.store))
        assert "is locked: another broker runs on this store; stop it or choose another folder" in line

    def test_unknown_and_wrong_settings(self, tmp_path: Path) -> None:
        for name, value, expected in [
            ("GANTRY_BROKER_NO_SUCH", "1", "GANTRY_BROKER_NO_SUCH: there is no such setting of the broker"),
            ("GANTRY_BROKER_LISTEN_PROT", "1", "there is no such setting"),
            ("GANTRY_BROKER_FLUSH_DISK_TYPE", "SOMETIMES", "'SOMETIMES' is not one of SYNC_FLUSH, ASYNC_FLUSH"),
            ("GANTRY_NO_SUCH", "1", "no part of Gantry reads this environment variable"),
        ]:
            directory = tmp_path / name / value
            assert expected in self.refusal(BrokerProcess(directory, environment={name: value}))
        file = tmp_path / "broker.toml"
        file.write_text("brokerName = 'x'\n")
        assert "broker.toml: brokerName: there is no such setting" in self.refusal(
            BrokerProcess(tmp_path / "file", "--config", str(file))
        )

    def test_a_wildcard_address_needs_advertise(self, tmp_path: Path) -> None:
        line = self.refusal(BrokerProcess(tmp_path / "all", "--listen", "0.0.0.0:0"))
        assert "say with --advertise which address clients reach this broker at" in line
        line = self.refusal(BrokerProcess(tmp_path / "none", "--listen", "nonsense"))
        assert line == "broker: --listen: 'nonsense' is not HOST:PORT"

    def test_a_store_of_a_later_release(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path) as broker:
            broker.terminate()
            mark = tmp_path / "store" / "config" / "gantry.json"
            content = json.loads(mark.read_text())
            mark.write_text(json.dumps({**content, "format_version": 99}))
            line = self.refusal(broker)
        assert "has format 99" in line
        assert json.loads(mark.read_text())["format_version"] == 99

    def test_config_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        config = tmp_path / "store" / "config"
        config.mkdir(parents=True)
        (config / "topics.json").write_text("{broken")
        line = self.refusal(BrokerProcess(tmp_path))
        assert "topics.json is not JSON" in line
        assert "move it away" in line
        assert (config / "topics.json").read_text() == "{broken"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
    def test_a_disk_that_is_full_or_read_only(self, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        folder.mkdir()
        if os.system(f"mount -t tmpfs -o size=2m tmpfs {folder} 2>/dev/null") != 0:
            pytest.skip("mounting is not allowed here")
        try:
            line = self.refusal(BrokerProcess(tmp_path / "full", store=folder / "store"))
            assert "can't take a message: its first file takes 4194304 bytes and the disk has" in line
            os.system(f"mount -o remount,ro {folder}")
            line = self.refusal(BrokerProcess(tmp_path / "ro", store=folder / "other"))
            assert "Read-only file system" in line
        finally:
            os.system(f"umount {folder}")


class TestTools:
    async def test_queue_states_are_in_one_answer(self, peer: Peer) -> None:
        await peer.make_topic("T", queues=2)
        await peer.send("T")
        answer = await peer.ask(RequestCode.GANTRY_QUEUE_STATES, ext={"topic": "T"})
        states = QueueStates.decode(answer.body_bytes)
        assert [(queue.queue_id, queue.max_offset) for queue in states.queues] == [(0, 1), (1, 0)]

    async def test_topics_and_groups_outlive_a_kill(self, tmp_path: Path, namesrv: NamesrvProcess) -> None:
        with BrokerProcess(tmp_path / "broker", namesrv=namesrv.address) as broker:
            async with peer_of(broker.address) as peer:
                await peer.make_topic("T", queues=3, perm=4)
                body = b'{"groupName":"g","retryMaxTimes":3}'
                assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
            broker.kill()
            broker.start()
            async with peer_of(broker.address) as peer:
                answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T"})
                assert b'"perm":4,"readQueueNums":3' in answer.body_bytes
                answer = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "g"})
                assert b'"retryMaxTimes":3' in answer.body_bytes
                answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, address=namesrv.address)
                assert {"T", "TBW102", "broker-a", "C"} <= set(TopicList.decode(answer.body_bytes).topic_list)
