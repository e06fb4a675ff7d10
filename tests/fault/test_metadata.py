"""Saving topics, groups and offsets: an older table never replaces a newer one, nor a bad file a good backup."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from gantry.remoting.codes import RequestCode
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.findings import Finding
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText
from services.broker.registry.persistence import Persistence
from tests.fault.brokers import broker, wait_until
from tests.support.brokerprocess import peer_of

TIMEOUT_S = 10.0
A_MOMENT_S = 0.2


class SlowFileSystem(OsFileSystem):
    """A file system that holds every replacement of a file until the test releases it."""

    __slots__ = ("may_replace", "waits")

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.may_replace = threading.Event()

    def replace(self, source: str, target: str) -> None:
        self.waits.set()
        assert self.may_replace.wait(TIMEOUT_S)
        super().replace(source, target)


async def test_a_write_under_way_ends_before_the_last_one_begins(tmp_path: Path) -> None:
    files, table = SlowFileSystem(), {"topics": 1}
    loop = asyncio.get_running_loop()
    persistence = Persistence(lambda work: loop.run_in_executor(None, work))
    text = ConfigText({"topics": lambda: table["topics"]})
    persistence.add("topics", ConfigFile(files, str(tmp_path / "topics.json")), text)
    persistence.mark("topics")
    writing = asyncio.ensure_future(persistence.run())
    assert await loop.run_in_executor(None, files.waits.wait, TIMEOUT_S)

    table["topics"] = 2
    persistence.mark("topics")
    writing.cancel()
    await asyncio.wait({writing}, timeout=A_MOMENT_S)
    assert not writing.done(), "it has ended, and left a thread behind that still writes the older table"

    files.may_replace.set()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    persistence.write_all()
    assert (tmp_path / "topics.json").read_bytes() == b'{\n\t"topics":2\n}'
    assert files.list_dir(str(tmp_path)) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b'{"topicConfigTable":{"T":7}}', b'{"topicConfigTabld":{}}'],
    ids=["empty", "torn", "misshapen", "misspelt"],
)
async def test_a_start_on_a_broken_file_keeps_its_backup(tmp_path: Path, broken: bytes) -> None:
    """The first save after such a start used to copy the broken file over the only good one."""
    process = broker(tmp_path, "")
    path = process.store / "config" / "topics.json"
    backup, kept = path.with_name("topics.json.bak"), path.with_name("topics.json.broken")
    try:
        process.start()
        async with peer_of(process.address) as peer:
            await peer.make_topic("T")
            await peer.make_topic("U")
        process.kill()
        good = backup.read_bytes()
        assert b'"T"' in good
        path.write_bytes(broken)
        assert [finding.path for finding in findings_of(process.store)] == [str(path)]

        process.start()
        assert "uses its backup" in process.log
        async with peer_of(process.address) as peer:
            assert (await peer.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T"})).code == 0
        await asyncio.to_thread(wait_until, lambda: path.exists() and b'"T"' in path.read_bytes())
        process.kill()
        assert (backup.read_bytes(), kept.read_bytes()) == (good, broken)
        assert [finding.path for finding in findings_of(process.store)] == [str(kept)]
    finally:
        process.kill()


def findings_of(store: Path) -> list[Finding]:
    with StoreReader(OsFileSystem(), str(store)) as reader:
        return [finding for finding in verify(reader).findings if finding.kind == "config"]
