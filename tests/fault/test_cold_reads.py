"""A store that is not in memory: readers wait for the disk, the broker's loop never does.

The kernel counts how often a thread had to wait for a page (`majflt`). The loop runs in the process's first thread, so
the count of that thread shows whether the loop has waited. The store lies on a file system of its own with a read-ahead
of 64 KiB. With a read-ahead of megabytes, a few faults would load the whole small store, and the test would see
nothing.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.runtime.osfilesystem import OsFileSystem
from tests.support.brokerprocess import BrokerProcess, Peer, peer_of
from tests.support.mounts import make_image, mounted, skip_without_mounts

QUEUES = 4
MESSAGES = 600
BODY_BYTES = 6_000
# A bound on the pages that the interpreter itself loads, with reserve; the reads below need more than a hundred.
FAULTS_MAX = 10
_MAJFLT_FIELD = 11


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    skip_without_mounts("stores on a disk with little read-ahead")
    image = tmp_path / "image"
    make_image(image, 128 << 20, "mkfs.ext4", "-q", "-F")
    with mounted(image, tmp_path / "disk") as path:
        device = path.stat().st_dev
        Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb").write_text("64")
        yield path


def body_of(queue_id: int, number: int) -> bytes:
    return f"{queue_id}/{number} ".encode().ljust(BODY_BYTES, bytes([number % 251]))


async def fill(peer: Peer) -> None:
    await peer.make_topic(queues=QUEUES)
    for number in range(MESSAGES):
        answers = await asyncio.gather(
            *(
                peer.send(body=body_of(queue_id, number), queue_id=queue_id, properties={"KEYS": "k"})
                for queue_id in range(QUEUES)
            )
        )
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


def drop_from_memory(store: Path) -> None:
    """Remove all files of a stopped broker from the page cache; skip if the file system keeps them."""
    paths = [path for path in store.rglob("*") if path.is_file() and path.stat().st_size]
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    first = OsFileSystem().open(str(min((store / "commitlog").iterdir())))
    first.map()
    is_cold = first.cached_end(0, first.size_bytes) == 0
    first.close()
    if not is_cold:
        pytest.skip(f"the file system of {store} keeps pages that it was told to drop")


def faults_of_loop(process_id: int) -> int:
    stat = Path(f"/proc/{process_id}/task/{process_id}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[_MAJFLT_FIELD - 2])


def metric(broker: BrokerProcess, name: str) -> float:
    text = httpx.get(f"http://{broker.facts['metrics']}/metrics", trust_env=False).text
    found = re.search(rf"^{name}(?:_total)?\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def test_readers_of_a_cold_store_do_not_delay_others(tmp_path: Path, disk: Path) -> None:
    broker = BrokerProcess(tmp_path, "--metrics-port", "auto", store=disk / "store")
    with broker:
        async with peer_of(broker.address) as peer:
            await fill(peer)
        assert broker.terminate() == 0, broker.log
        drop_from_memory(broker.store)
        broker.start()
        async with peer_of(broker.address) as sender:
            await sender.send(queue_id=QUEUES - 1, body=b"warm")
            process_id = broker.process_id
            before = faults_of_loop(process_id)
            reading = asyncio.gather(*(read(broker.address, queue_id) for queue_id in range(QUEUES)))
            sent = 0
            while not reading.done() or sent < 50:
                answer = await sender.send("U", body=b"meanwhile")
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                sent += 1
            await reading
            await ask_for_old_things(sender)
            faults = faults_of_loop(process_id) - before
        assert metric(broker, "gantry_broker_cold_reads") > 20
        assert metric(broker, "gantry_broker_cold_read_bytes") > 1 << 20
        assert metric(broker, "gantry_broker_store_damaged_reads") == 0
        assert faults <= FAULTS_MAX
        assert broker.terminate() == 0, broker.log


async def read(address: str, queue_id: int) -> None:
    """Read a queue over a connection of its own."""
    async with peer_of(address) as peer:
        bodies = await peer.read_all(queue_id=queue_id)
        assert bodies[:MESSAGES] == [body_of(queue_id, number) for number in range(MESSAGES)]


async def ask_for_old_things(peer: Peer) -> None:
    """Search by time and by key, request the oldest message's time, and list a queue's units."""
    queue = {"topic": "T", "queueId": "0"}
    for code, ext in (
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": "1"}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, queue),
        (RequestCode.GANTRY_UNITS, queue | {"offset": "0", "maxUnits": "600"}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
        (
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": "k", "maxNum": "5", "beginTimestamp": "0", "endTimestamp": str(1 << 62)},
        ),
    ):
        answer = await peer.ask(code, ext=ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
