"""Topics, groups and offsets on their way to the disk: an older table never goes over a newer one."""

import asyncio
import contextlib
import threading
from pathlib import Path

from gantry.runtime.files import OsFileSystem
from services.broker.registry.persistence import Persistence

TIMEOUT_S = 10.0
A_MOMENT_S = 0.2


class SlowFileSystem(OsFileSystem):
    """Whoever replaces a file waits until he may."""

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
    persistence = Persistence(files, lambda work: loop.run_in_executor(None, work))
    persistence.add("topics", str(tmp_path / "topics.json"), lambda: dict(table))
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
