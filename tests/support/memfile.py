"""An open file and a volume of the file system in memory (memfilesystem.py)."""

import errno
from collections.abc import Sequence
from typing import Any, Final

_PIECE_BYTES: Final = 64 << 10


class MemFile:
    """A file that is open."""

    def __init__(self, node: Any, path: str, *, writable: bool) -> None:
        self.path = path
        self.size_bytes = len(node.memory)
        self._open_node: Any = node
        self._writable = writable
        self._read_only: Any = None
        self._has_descriptor = True

    @property
    def _node(self) -> Any:
        assert self._open_node is not None, f"{self.path} is closed"
        return self._open_node

    def drop_descriptor(self) -> None:
        self._has_descriptor = False

    def _need_descriptor(self, *, keep: bool) -> None:
        if not self._has_descriptor:
            self._node.files.size_bytes(self.path)  # Raises FileNotFoundError.
            self._has_descriptor = keep

    def map(self) -> Any:
        memory = self._node.memory
        if self._writable:
            return memory
        if self._read_only is None:
            self._read_only = type(memory)(memory)
            self._read_only.node = self._node
            self._read_only.writable = False
        return self._read_only

    def read(self, at: int, size: int) -> bytes:
        self._need_descriptor(keep=True)
        assert 0 <= at <= at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
        files = self._node.files
        files.read_begins(self.path, at, size)
        if self._node.unreadable_within(at, at + size):
            raise OSError(errno.EIO, "Input/output error", self.path)
        content = self._node.memory if self._node.dropped is None else self._node.dropped
        return bytes(memoryview(content)[at : at + size])  # Not by a slice of the map: that would be a touch.

    def read_now(self, at: int, size: int) -> bytes | None:
        self._need_descriptor(keep=True)
        return None if self.path in self._node.files.cold else self.read(at, size)

    def cached_end(self, at: int, end: int) -> int:
        return at if self.path in self._node.files.cold else end

    def prefetch(self, at: int, size: int) -> None:
        self._need_descriptor(keep=False)
        self._node.files.advised.append((self.path, at, size))

    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        self._need_descriptor(keep=False)
        found: list[tuple[int, int]] = self._node.blank_unreadable(start, stop)
        return found

    def sync(self) -> None:
        self._need_descriptor(keep=False)
        self._node.files.sync(self._node, self.path)

    def write(self, at: int, pieces: Sequence[bytes]) -> None:
        self._need_descriptor(keep=True)
        memory = self.map()
        self._node.fill_holes(at, sum(map(len, pieces)))
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)

    def allocate(self, at: int, size: int) -> None:
        self._need_descriptor(keep=True)
        assert at + size <= self.size_bytes, f"{size} bytes at {at} of a file of {self.size_bytes}"
        self._node.fill_holes(at, size)

    def data_end(self, start: int) -> int:
        self._need_descriptor(keep=False)
        with memoryview(self._node.memory) as memory:
            end = len(memory)
            while start < end:
                # Large pieces are compared at once. Byte by byte, a look at one timer wheel takes 50 ms.
                begin = max(start, end - _PIECE_BYTES)
                piece = bytes(memory[begin:end])
                if piece != bytes(len(piece)):
                    return begin + len(piece.rstrip(b"\0"))
                end = begin
        return start

    def close(self) -> None:
        if self._open_node is None:
            return
        memory = self._node.memory if self._writable else self._read_only
        if memory:
            # A bytearray whose length changes raises BufferError while a memoryview is held, as closing an mmap does.
            # Shorter first: to grow would copy the whole file.
            memory.append(memory.pop())
        self._open_node = None


class MemVolume:
    """The whole file system."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.sync_volume(self._path)

    def close(self) -> None:
        """Do nothing: there is no descriptor."""
