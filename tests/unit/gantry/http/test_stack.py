"""The stack file, present or missing."""

from pathlib import Path

import pytest

from gantry.http import AsyncGantryClient, GantryClient, NoStackError, StreamClient, baseclient, streamcore
from gantry.http.stack import Stack, read_stack
from gantry.runtime.osfilesystem import OsFileSystem


class OneFile(OsFileSystem):
    """A file system that has one file, or raises an error instead."""

    def __init__(self, content: bytes | OSError) -> None:
        self.content = content

    def read(self, path: str) -> bytes:
        assert path == "data/stack.json"
        if isinstance(self.content, OSError):
            raise self.content
        return self.content


def test_a_stack_is_read() -> None:
    content = (
        b'{"http": "http://h:1", "api_key": "k", "namesrv": ["n:1"], "new": 1, "processes": [{"name": "a", "pid": 2}]}'
    )
    stack = read_stack(Path("data"), files=OneFile(content))
    assert (stack.http, stack.api_key, stack.namesrv, stack.processes[0].pid) == ("http://h:1", "k", ["n:1"], 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FileNotFoundError(), "start one with `gantry up --data data`"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (b"{}", "is no stack file"),
        (b"\xff", "is no stack file"),
        (b'{"http": "\xff"}', "is no stack file"),
        (b'{"new": ' + b"[" * 10_000, "is no stack file"),
    ],
)
def test_no_stack(content: bytes | OSError, message: str) -> None:
    with pytest.raises(NoStackError, match=message):
        read_stack("data", files=OneFile(content))


async def test_clients_of_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (baseclient, streamcore):
        monkeypatch.setattr(module, "read_stack", lambda _: Stack("http://h:1", "k"))
    with GantryClient.from_stack("data") as sync:
        assert sync.base_url == "http://h:1"
    async with AsyncGantryClient.from_stack("data") as asynchronous:
        assert asynchronous.base_url == "http://h:1"
    assert StreamClient.from_stack("data", coding="json") is not None
