"""Few descriptors: idle connections, log files and queues must leave enough of them for the rest."""

import contextlib
import functools
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import Outcome, SendError
from gantry.client.producer import Producer
from gantry.model.group import SubscriptionGroup
from gantry.model.message import Message, MessageQueue
from gantry.model.topic import TopicConfig
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import ConnectionLostError
from gantry.remoting.headers import PutKvConfigHeader
from gantry.runtime.descriptors import CONNECTIONS_MIN
from gantry.runtime.metrics import CONNECTIONS_MAX
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from services.broker.store.log.commitlog import UNFLUSHED_FILES_MAX
from tests.fault.brokers import BROKER, assert_verifies, broker, wait_until
from tests.fault.load import client, read_all
from tests.fault.test_many_queues import opened
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, Peer, peer_of
from tests.support.brokerprocess import wait_until as until

DESCRIPTORS = 200
"""Slightly more than a broker needs."""
IDLE = 500
LOG_FILE_BYTES = 32 << 10
BODY = Rng(1).bytes(20 << 10)
"""One record fills a log file, since the body can't be compressed."""
GROUP = "READERS"


@contextlib.contextmanager
def idle_connections(address: str, count: int = IDLE) -> Iterator[list[socket.socket]]:
    """Connections that send nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)]
        for each in sockets:
            each.setblocking(False)
        yield sockets


def open_ones(sockets: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that are still open."""

    def is_open(each: socket.socket) -> bool:
        try:
            return each.recv(1) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    return [each for each in sockets if is_open(each)]


def descriptors_of(process: BrokerProcess | NamesrvProcess) -> int:
    """Return how many descriptors a process has."""
    return len(list(Path(f"/proc/{process.process_id}/fd").iterdir()))


def limited(folder: Path, namesrv: str, *arguments: str, descriptors: int = DESCRIPTORS) -> BrokerProcess:
    """A broker that creates a new log file for each message."""
    process = broker(folder, namesrv, mapped_file_size_commit_log=LOG_FILE_BYTES)
    process.add_arguments(*arguments)
    process.limit_descriptors(descriptors)
    return process


def repair(store: Path) -> None:
    """Run `gantry store repair`."""
    command = [sys.executable, "-m", "services.broker.store", "repair", str(store)]
    subprocess.run(["prlimit", f"--nofile={DESCRIPTORS}", *command], check=True, capture_output=True)


async def send_each(engine: ClientEngine, queues: list[MessageQueue]) -> None:
    """Send one message to each queue."""
    producer = Producer(engine, "P")
    for queue in queues:
        await until(functools.partial(is_sent, producer, queue), "the message is stored")


async def is_sent(producer: Producer, queue: MessageQueue) -> bool:
    """Send a message; return False if the worker has not created the next log file yet."""
    try:
        sent = await producer.send(Message(queue.topic, BODY), queue=queue)
    except SendError as error:
        if "is not made yet" in str(error):
            return False
        raise
    assert sent.outcome is Outcome.STORED
    return True


async def is_served(peer: Peer) -> bool:
    """Send a message; return False if the broker has no free connection."""
    try:
        return (await peer.send("T")).code == ResponseCode.SUCCESS
    except ConnectionLostError:
        return False


async def knows(namesrv: Peer, process: BrokerProcess) -> bool:
    """Request a broker's route; return False if the name server has no free connection."""
    try:
        return await namesrv.route(BROKER, namesrv.address) == [process.address]
    except ConnectionLostError:
        return False


async def test_idle_connections_leave_a_broker_what_it_needs(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    queues = [MessageQueue("T", BROKER, number) for number in range(8)]
    with limited(tmp_path / BROKER, namesrv.address) as process:
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", 8, 8))
            await Admin(engine).create_topic(TopicConfig("GONE", 8, 8))
            await Admin(engine).put_group(SubscriptionGroup(GROUP))
            await send_each(engine, queues)
            with idle_connections(process.address) as idle:
                await send_each(engine, queues * 8)
                await send_each(engine, [MessageQueue("GONE", BROKER, 0)])
                assert len(await read_all(engine, queues)) == 9 * len(queues)
                await PullConsumer(engine, GROUP).commit_offset(queues[0], 3)
                await Admin(engine).delete_topic("GONE")
                wait_until(lambda: not (process.store / "consumequeue/GONE").exists())
                wait_until(lambda: GROUP in (process.store / "config/consumerOffset.json").read_text())
                assert descriptors_of(process) < DESCRIPTORS
                accepted = open_ones(idle)
                assert CONNECTIONS_MIN <= len(accepted) < IDLE
                for each in idle:  # All of them, because those in the broker's accept backlog would be accepted next.
                    each.close()
                async with peer_of(process.address) as peer:
                    await until(functools.partial(is_served, peer), "the broker sees that the idle ones are gone")
        assert "Too many open files" not in process.log
        assert process.log.count("too many connections") == 1, "not a line for each"
        assert process.terminate() == 0
    assert_verifies(process.store)


async def test_a_broker_starts_with_more_files_than_descriptors(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    queues = [MessageQueue("T", BROKER, number) for number in range(DESCRIPTORS)]
    with limited(tmp_path / BROKER, namesrv.address) as process:
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", len(queues), len(queues)))
            await send_each(engine, queues)
        assert len(list((process.store / "commitlog").iterdir())) > DESCRIPTORS
        for mend in (False, True):
            process.kill()
            if mend:
                repair(process.store)
            process.start()
            async with client(namesrv.address) as engine:
                assert len(await read_all(engine, queues)) == len(queues)
        assert "Too many open files" not in process.log
        assert process.terminate() == 0
    assert_verifies(process.store)


async def test_idle_connections_to_the_metrics_take_few_descriptors(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    queues = [MessageQueue("T", BROKER, number) for number in range(8)]
    with limited(tmp_path / BROKER, namesrv.address, "--metrics-port", "0") as process:
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", 8, 8))
            with idle_connections(process.facts["metrics"]) as idle:
                await send_each(engine, queues * 4)
                wait_until(lambda: len(open_ones(idle)) <= CONNECTIONS_MAX)
        assert process.terminate() == 0


def test_a_limit_that_is_too_low_is_reported_in_one_line(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    process = limited(tmp_path / BROKER, namesrv.address, descriptors=100)
    process.launch()
    try:
        assert process.wait_until_ready() == 1
    finally:
        process.kill()
    assert "Traceback" not in process.log
    assert "100 descriptors" in process.log
    assert "ulimit -n" in process.log
    assert not process.store.exists(), "nothing was begun"


async def test_idle_connections_leave_a_name_server_what_it_needs(tmp_path: Path) -> None:
    namesrv = NamesrvProcess(tmp_path / "namesrv")
    namesrv.limit_descriptors(DESCRIPTORS)
    entry = PutKvConfigHeader(namespace="N", key="K", value="V")
    with namesrv, broker(tmp_path / BROKER, namesrv.address) as process:
        async with peer_of(namesrv.address) as peer:
            assert await peer.route(BROKER, namesrv.address) == [process.address]
            with idle_connections(namesrv.address) as idle:
                assert (await peer.ask(RequestCode.PUT_KV_CONFIG, entry)).code == 0, "a file is written"
                assert CONNECTIONS_MIN <= len(open_ones(idle)) < IDLE
                for each in idle:
                    each.close()
                async with peer_of(namesrv.address) as other:
                    await until(functools.partial(knows, other, process), "the name server sees that they are gone")
    assert "Too many open files" not in namesrv.log


def test_log_files_without_writes_hold_no_descriptors(tmp_path: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    settings = {"mapped_file_size_commit_log": LOG_FILE_BYTES}
    with opened(tmp_path / "store", OsFileSystem(), **settings) as store:
        before = count()
        for _ in range(3 * UNFLUSHED_FILES_MAX):
            assert store.put("T", 0, BODY, b"", born_at_ms=1, born_host=bytes(8)).reason == ""
            store.write_out()
            store._group_commit.flush_now()
            store._log._ahead.wait_for(store._log._next_start())
        store.dispatch()
        store._log.maintain_files()
        assert count() < before + UNFLUSHED_FILES_MAX // 2
    with opened(tmp_path / "store", OsFileSystem(), **settings) as store:
        assert len(store._log.files) >= 3 * UNFLUSHED_FILES_MAX
        assert count() < before + UNFLUSHED_FILES_MAX // 2
        assert len(store.get("T", 0, 0, 32).records) > 0
