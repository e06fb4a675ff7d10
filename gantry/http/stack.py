"""`DIR/stack.json`: the addresses and the API key of a stack that `gantry up` started."""

from pathlib import Path

import msgspec

from gantry.http.errors import DECODE_ERRORS, NoStackError
from gantry.runtime.files import FileSystem
from gantry.runtime.osfilesystem import OsFileSystem


class StackBroker(msgspec.Struct, frozen=True):
    """One broker of the stack."""

    cluster: str
    name: str
    id: int
    address: str
    store: str


class StackProcess(msgspec.Struct, frozen=True):
    """One process of the stack."""

    name: str
    pid: int


class Stack(msgspec.Struct, frozen=True):
    """A running stack."""

    http: str
    api_key: str
    namesrv: list[str] = []
    brokers: list[StackBroker] = []
    postgres: str = ""
    processes: list[StackProcess] = []


def read_stack(data_dir: str | Path, *, files: FileSystem | None = None) -> Stack:
    """Return the running stack of a data folder.

    Raises:
        NoStackError: There is none, or its file can't be read.
    """
    path = str(Path(data_dir) / "stack.json")
    try:
        content = (files or OsFileSystem()).read(path)
    except FileNotFoundError:
        raise NoStackError(f"no stack runs in {data_dir}: start one with `gantry up --data {data_dir}`") from None
    except OSError as error:
        raise NoStackError(f"{path} can't be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(content, type=Stack)
    except DECODE_ERRORS as error:
        raise NoStackError(f"{path} is no stack file: {error}") from None
