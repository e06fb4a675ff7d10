"""Disks that are full, above the watermark or read-only, on real file systems, and starts that must fail."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, Outcome, SendError
from gantry.client.producer import Producer
from gantry.model.message import Message, MessageQueue
from gantry.model.topic import TopicConfig
from gantry.remoting.codes import ResponseCode
from gantry.runtime.rng import Rng
from tests.fault.brokers import BROKER, assert_verifies, broker
from tests.fault.history import History, assert_kept
from tests.fault.load import Load, client, read_all
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess
from tests.support.mounts import make_image, mounted, skip_without_mounts
from tests.support.serviceprocess import ServiceProcess

DISK_BYTES = 32 << 20
ROOM_BYTES = 4 << 20
RESERVE_BYTES = 256 << 10
WITHIN_S = 20.0
PAUSE_S = 0.05
QUEUES = [MessageQueue("T", BROKER, number) for number in range(3)]
# The sync that meets the failure may report the aborted journal or a file that can't be created.
BREAKDOWN = ("Read-only file system", "the CommitLog can't be flushed: Input/output error")
WATERMARKS = {
    "disk_max_used_space_ratio": 75,
    "disk_space_clean_forcibly_ratio": 85,
    "disk_space_warning_level_ratio": 90,
}


class Disk:
    """A small ext4 file system, and a file in it that takes up the free space."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "store"
        self._filler = path / "filler"

    def fill(self, *, room_bytes: int = 0) -> None:
        """Leave only that much free space, or none at all."""
        free = os.statvfs(self.path)
        with self._filler.open("wb") as file:
            # The allocation itself needs some space, too.
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - max(room_bytes, RESERVE_BYTES))
        if room_bytes == 0:
            self.fill_up()

    def fill_up(self) -> None:
        """Leave no free space at all."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Free the space again."""
        self._filler.unlink()

    def break_down(self) -> None:
        """Make the kernel find an error, so that it makes the file system read-only even for open files."""
        source = subprocess.run(
            ["findmnt", "-no", "SOURCE", str(self.path)], capture_output=True, text=True, check=True
        ).stdout.strip()
        Path(f"/sys/fs/ext4/{Path(source).name}/trigger_fs_error").write_text("a test")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    skip_without_mounts("tests of full and read-only disks")
    image = tmp_path / "small.img"
    make_image(image, DISK_BYTES, "mkfs.ext4", "-q", "-m", "0")
    with mounted(image, tmp_path / "small", else_skip="tests of full and read-only disks need ext4 on a loop device"):
        pass
    return image


@pytest.fixture
def disk(image: Path, tmp_path: Path) -> Iterator[Disk]:
    with mounted(image, tmp_path / "small", "errors=remount-ro") as path:
        yield Disk(path)


@contextlib.asynccontextmanager
async def running(process: BrokerProcess, namesrv: NamesrvProcess) -> AsyncIterator[ClientEngine]:
    """A broker with topic T, and a client."""
    try:
        await asyncio.to_thread(process.start)
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", len(QUEUES), len(QUEUES)))
            yield engine
    finally:
        process.kill()


async def refused(engine: ClientEngine, *texts: str) -> SendError:
    """Send until a send is refused with one of these texts, and return the error."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await Producer(engine, "P").send(Message("T", b"refused"), queue=QUEUES[0])
            except SendError as error:
                if any(text in str(error) for text in texts):
                    return error
            await asyncio.sleep(PAUSE_S)


async def stored_again(engine: ClientEngine) -> None:
    """Wait until a send succeeds without an operator's action."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with contextlib.suppress(SendError):
                await Producer(engine, "P").send(Message("T", b"stored"), queue=QUEUES[0])
                return
            await asyncio.sleep(PAUSE_S)


async def test_a_full_disk_refuses_loses_nothing_and_recovers(
    disk: Disk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    process, history = broker(tmp_path / BROKER, namesrv.address, store=disk.store), History()
    async with running(process, namesrv) as engine:
        load = Load(engine, history, rng, QUEUES)
        disk.fill(room_bytes=ROOM_BYTES)
        load.start()
        await load.hear("No space left on device")
        await load.reach(0)
        disk.free()
        await load.reach(100)
        await load.stop()
        assert_kept(history, await read_all(engine, QUEUES), gapless=True)
        # Nothing is written for a message without space, so its absence is certain.
        assert history.count(Outcome.UNKNOWN) == 0, load.errors
        assert process.terminate() == 0
    assert_verifies(disk.store)


async def test_only_a_new_queue_without_room_is_refused(disk: Disk, tmp_path: Path, namesrv: NamesrvProcess) -> None:
    process, queue = broker(tmp_path / BROKER, namesrv.address, store=disk.store), MessageQueue("NEW", BROKER, 0)
    async with running(process, namesrv) as engine:
        await Admin(engine).create_topic(TopicConfig("NEW", 1, 1))
        await stored_again(engine)
        disk.fill()
        await assert_new_queue_refused(engine, queue)
        disk.free()
        await Producer(engine, "P").send(Message("NEW", b"second"), queue=queue)
        consumer = PullConsumer(engine, "G")
        assert [message.body for message in (await consumer.pull(queue, 0)).messages()] == [b"second"]
        assert process.terminate() == 0
    assert_verifies(disk.store)


async def assert_new_queue_refused(engine: ClientEngine, queue: MessageQueue) -> None:
    """The first message of a queue is certainly not stored, and the existing queues continue."""
    for _ in range(2):
        with pytest.raises(SendError) as failed:
            await Producer(engine, "P").send(Message(queue.topic, b"first"), queue=queue)
        assert failed.value.outcome is Outcome.NOT_STORED
        assert f"queue 0 of topic {queue.topic} can't be made" in str(failed.value)
        assert "No space left on device" in str(failed.value)
        await Producer(engine, "P").send(Message("T", b"stored"), queue=QUEUES[0])


async def test_a_disk_without_inodes_refuses_new_queues_only(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    skip_without_mounts("tests of disks without inodes")
    image, queue = tmp_path / "few.img", MessageQueue("NEW", BROKER, 0)
    make_image(image, DISK_BYTES, "mkfs.ext4", "-q", "-m", "0", "-N", "128")
    with mounted(image, tmp_path / "few", else_skip="tests of disks without inodes need ext4 on a loop device") as path:
        process = broker(tmp_path / BROKER, namesrv.address, store=path / "store")
        async with running(process, namesrv) as engine:
            await Admin(engine).create_topic(TopicConfig("NEW", 1, 1))
            await stored_again(engine)
            fillers = []
            with contextlib.suppress(OSError):
                while True:
                    (filler := path / f"filler{len(fillers)}").touch()
                    fillers.append(filler)
            await assert_new_queue_refused(engine, queue)
            for filler in fillers:
                filler.unlink()
            await Producer(engine, "P").send(Message("NEW", b"second"), queue=queue)
            assert process.terminate() == 0
        assert_verifies(path / "store")


async def test_a_full_disk_while_queue_files_grow_is_an_error_that_passes(
    disk: Disk, tmp_path: Path, namesrv: NamesrvProcess
) -> None:
    """A block of a queue file holds 204 units; the log has space for more messages."""
    settings = {"mapped_file_size_consume_queue": 6_000_000}
    process = broker(tmp_path / BROKER, namesrv.address, store=disk.store, **settings)
    async with running(process, namesrv) as engine:
        producer = Producer(engine, "P")
        await producer.send(Message("T", b"first"), queue=QUEUES[0])
        disk.fill()
        for _ in range(200):
            await producer.send(Message("T", b"fits the block"), queue=QUEUES[0])
        error = await refused(engine, "messages can't be made readable")
        assert error.outcome is Outcome.NOT_STORED
        assert "/consumequeue/T/0/00000000000000000000 can't be extended: No space left on device" in str(error)
        disk.free()
        await stored_again(engine)
        assert process.terminate() == 0
    assert_verifies(disk.store)


async def test_a_crash_on_a_full_disk_loses_nothing(
    disk: Disk, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    process, history = broker(tmp_path / BROKER, namesrv.address, store=disk.store), History()
    async with running(process, namesrv) as engine:
        load = Load(engine, history, rng, QUEUES)
        disk.fill(room_bytes=ROOM_BYTES)
        load.start()
        await load.hear("No space left on device")
        await asyncio.to_thread(process.kill)
        await load.stop()
    disk.fill_up()
    # The start needs no space if it has nothing to rebuild after the crash; then its messages can be read.
    before = len(process.log.splitlines())
    process.launch()
    if process.wait_until_ready() is not None:
        line = the_line(process, before)
        assert "No space left on device" in line
        assert str(disk.store) in line
    process.kill()
    disk.free()
    async with running(process, namesrv) as engine:
        assert_kept(history, await read_all(engine, QUEUES), gapless=True)
        await stored_again(engine)


async def test_a_topic_that_finds_no_room_is_refused(disk: Disk, tmp_path: Path, namesrv: NamesrvProcess) -> None:
    process = broker(tmp_path / BROKER, namesrv.address, store=disk.store)
    async with running(process, namesrv) as engine:
        disk.fill()
        with pytest.raises(BrokerError, match="No space left on device"):
            await Admin(engine).create_topic(TopicConfig("T2", 1, 1))
        disk.free()
        await Admin(engine).create_topic(TopicConfig("T2", 1, 1))
        assert process.terminate() == 0


async def test_a_stop_on_a_full_disk_says_what_it_could_not_save(
    disk: Disk, tmp_path: Path, namesrv: NamesrvProcess
) -> None:
    process = broker(tmp_path / BROKER, namesrv.address, store=disk.store)
    async with running(process, namesrv) as engine:
        disk.fill()
        with pytest.raises(BrokerError):
            await Admin(engine).create_topic(TopicConfig("T2", 1, 1))
        process.terminate()
        assert "Traceback" not in process.log
        disk.free()
        process.start()
        async with client(namesrv.address) as again:
            await stored_again(again)


async def test_above_the_watermark_sends_are_refused_until_there_is_room(
    disk: Disk, tmp_path: Path, namesrv: NamesrvProcess
) -> None:
    process = broker(tmp_path / BROKER, namesrv.address, store=disk.store, **WATERMARKS)
    async with running(process, namesrv) as engine:
        await stored_again(engine)
        disk.fill(room_bytes=DISK_BYTES // 50)
        error = await refused(engine, "% full, nothing is stored above 90 %")
        assert error.outcome is Outcome.NOT_STORED
        assert error.retryable
        assert isinstance(error.cause, BrokerError)
        assert error.cause.code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.free()
        await stored_again(engine)


async def test_a_disk_that_breaks_down_under_load_loses_nothing_acknowledged(
    image: Path, tmp_path: Path, namesrv: NamesrvProcess, rng: Rng
) -> None:
    history = History()
    folder = tmp_path / "small"
    with mounted(image, folder, "errors=remount-ro"):
        disk = Disk(folder)
        process = broker(tmp_path / BROKER, namesrv.address, store=disk.store)
        async with running(process, namesrv) as engine:
            load = Load(engine, history, rng, QUEUES)
            load.start()
            await load.reach(50 + rng.below(200))
            # A sync that is running at this moment may report success without being complete (RECORD.md, "What is not
            # ours").
            until = history.now()
            disk.break_down()
            await load.hear(*BREAKDOWN)
            await load.stop()
            assert (await refused(engine, *BREAKDOWN)).outcome is Outcome.NOT_STORED
            # Messages that others may read are still served.
            assert await read_all(engine, QUEUES)
            await asyncio.to_thread(process.terminate)
            assert "Traceback" not in process.log
        assert "Read-only file system" in refusal(process)
    with mounted(image, folder):
        async with running(process, namesrv) as engine:
            assert_kept(history, await read_all(engine, QUEUES), until=until)
            await stored_again(engine)


def refusal(process: ServiceProcess) -> str:
    """Start a service, expect exit code 1, and return the one line that it prints besides its log."""
    before = len(process.log.splitlines())
    process.launch()
    assert process.wait() == 1, process.log
    return the_line(process, before)


def the_line(process: ServiceProcess, before: int) -> str:
    """Return the one line that it printed besides its log, after the first `before` lines."""
    said = [line for line in process.log.splitlines()[before:] if not line.startswith("{")]
    assert len(said) == 1, said
    return said[0]


def test_a_read_only_disk_is_named(image: Path, tmp_path: Path) -> None:
    process = broker(tmp_path / BROKER, "", store=tmp_path / "small" / "store")
    with mounted(image, tmp_path / "small", "ro"):
        assert f"{tmp_path}/small/store" in (line := refusal(process))
        assert "Read-only file system" in line
    with mounted(image, tmp_path / "small"):
        process.start()
        assert process.terminate() == 0
    with mounted(image, tmp_path / "small", "ro"):
        assert "Read-only file system" in refusal(process)


def test_a_disk_too_small_for_a_store_is_named(disk: Disk, tmp_path: Path) -> None:
    line = refusal(broker(tmp_path / BROKER, "", store=disk.store, mapped_file_size_commit_log=1 << 30))
    assert str(disk.store) in line
    assert "free space or choose another folder" in line


def test_a_locked_store_is_named(tmp_path: Path) -> None:
    with broker(tmp_path / "one", "", store=tmp_path / "store"):
        line = refusal(broker(tmp_path / "two", "", store=tmp_path / "store"))
    assert f"{tmp_path}/store/lock is locked: another broker runs on this store" in line


@pytest.mark.parametrize("service", ["broker", "namesrv"])
def test_a_port_in_use_is_named(tmp_path: Path, service: str) -> None:
    place = ("--store" if service == "broker" else "--data", str(tmp_path / "data"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(
            ServiceProcess(service, tmp_path, "--listen", f"127.0.0.1:{port}", "--metrics-port", "off", *place)
        )
    assert str(port) in line
    assert "in use" in line


def test_a_store_of_a_newer_format_is_named_and_left_alone(tmp_path: Path) -> None:
    process = broker(tmp_path / BROKER, "")
    process.start()
    assert process.terminate() == 0
    manifest = process.store / "config" / "gantry.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({name: 99 if "format" in name else value for name, value in content.items()}))
    before = manifest.read_bytes()
    line = refusal(process)
    assert "gantry.json" in line
    assert "99" in line
    assert manifest.read_bytes() == before


@pytest.mark.parametrize("service", ["broker", "namesrv", "gateway"])
def test_an_unknown_setting_is_named(tmp_path: Path, service: str) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("no_such_setting = 1\n")
    process = ServiceProcess(service, tmp_path, "--config", str(settings))
    assert "no_such_setting" in refusal(process)
    variable = f"GANTRY_{service.upper()}_NO_SUCH_THING"
    assert variable in refusal(ServiceProcess(service, tmp_path, environment={variable: "1"}))
    assert "GANTRY_NO_SUCH_PART" in refusal(ServiceProcess(service, tmp_path, environment={"GANTRY_NO_SUCH_PART": "1"}))
