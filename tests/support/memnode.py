"""Files and folders of the file system in memory (memfilesystem.py), and what a power cut leaves of them."""

import errno
from typing import Any

from gantry.runtime.rng import Rng

PAGE_BYTES = 256
SECTOR_BYTES = 64


class BusError(BaseException):
    """The process would have been ended by SIGBUS; no boundary may catch it."""


class MemMemory(bytearray):
    """A map: as `mmap.mmap`, its slices are bytes and slice assignment may not change its length."""

    node: "Node | None" = None
    writable: bool

    def __getitem__(self, key: Any) -> Any:
        node = self.node
        if node is not None and node.path in node.files.cold:
            node.files.cold_touches.append(node.path)
        if node is not None and node.unreadable:
            start, stop, _ = key.indices(len(self)) if isinstance(key, slice) else (key, key + 1, 1)
            if node.unreadable_within(start, stop):
                raise BusError(f"{node.path} can't be read between {start} and {stop}")
        value = super().__getitem__(key)
        return bytes(value) if isinstance(key, slice) else value

    def __setitem__(self, key: Any, value: Any) -> None:
        start, stop, _ = key.indices(len(self))
        if not self.writable:
            raise TypeError("mmap can't modify a readonly memory map.")
        if len(value) != stop - start:
            raise IndexError("mmap slice assignment is wrong size")
        assert self.node is not None
        self.node.fill_holes(start, len(value), is_map=True)
        self.node.note_write(start, bytes(value))
        super().__setitem__(key, value)


class Node:
    """A file's content, its state at the last sync and what was written since."""

    def __init__(self, files: Any, path: str, data: bytes | bytearray, *, is_synced: bool) -> None:
        self.files = files
        self.path = path
        self.synced: bytes | bytearray | None = data if is_synced else None
        self.writes: list[tuple[int, bytes]] = []
        self.dropped: bytes | None = None
        """The content while it is not in the page cache."""
        self.blocks: set[int] | None = None
        """Pages that have a block; None: all of them."""
        self.is_replaced = False
        """The content as a whole is another one than what was synced."""
        self.unreadable: list[tuple[int, int]] = []
        """Ranges that the disk can't read: a look through the map ends the process."""
        self.modified_ms = files.clock.now_ms()
        self.memory = self._map(data)

    def _map(self, data: bytes | bytearray) -> MemMemory:
        memory = MemMemory(data)
        memory.node = self
        memory.writable = True
        return memory

    def note_write(self, start: int, data: bytes) -> None:
        self.files.operate("map_write", self.path)
        self.modified_ms = self.files.clock.now_ms()
        self.writes.append((start, data))

    def fill_holes(self, start: int, size: int, *, is_map: bool = False) -> None:
        """Give a range its blocks; a full disk is an error, and for who writes through the map the end."""
        if self.blocks is None or size == 0:
            return
        missing = set(range(start // PAGE_BYTES, (start + size - 1) // PAGE_BYTES + 1)) - self.blocks
        if missing and self.files.used_bytes() + len(missing) * PAGE_BYTES > self.files.capacity_bytes:
            if is_map:
                raise BusError(f"{self.path} has a hole at {start} and the disk is full")
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self.blocks |= missing

    def used_bytes(self) -> int:
        size = len(self.memory)
        return size if self.blocks is None else min(len(self.blocks) * PAGE_BYTES, size)

    def replace_all(self, data: bytes) -> None:
        self.modified_ms = self.files.clock.now_ms()
        self.memory = self._map(data)
        self.is_replaced = True

    def sync(self) -> None:
        """Write the pages that are dirty, each as a whole."""
        if self.synced is None or self.is_replaced:
            self.synced, self.is_replaced = bytes(self.memory), False
        elif self.writes:
            # Changed in place: a copy of a timer wheel would take longer than everything else in a test.
            content = self.synced if isinstance(self.synced, bytearray) else bytearray(self.synced)
            with memoryview(self.memory) as memory:
                for page in self._dirty_pages():
                    start, stop = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
                    content[start:stop] = memory[start:stop]
            self.synced = content
        self.writes.clear()

    def fail_sync(self) -> None:
        """Do as Linux after a failed write-back: what was written can be read, counts as clean, is not on the disk."""
        if self.synced is None:
            self.synced = bytes(len(self.memory))
        self.is_replaced = False
        self.writes.clear()

    def drop_cache(self) -> None:
        self.sync()
        assert self.synced is not None, "synced"
        self.memory, self.dropped = self._map(self.synced), None

    def unreadable_within(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [(max(low, start), min(high, stop)) for low, high in self.unreadable if low < stop and high > start]

    def blank_unreadable(self, start: int, stop: int) -> list[tuple[int, int]]:
        found = self.unreadable_within(start, stop)
        for low, high in found:
            bytearray.__setitem__(self.memory, slice(low, high), bytes(high - low))
        self.unreadable = [each for each in self.unreadable if not start <= each[0] < stop]
        return found

    def _dirty_pages(self) -> dict[int, list[tuple[int, bytes]]]:
        pages: dict[int, list[tuple[int, bytes]]] = {}
        for start, data in self.writes:
            for page in range(start // PAGE_BYTES, (start + max(len(data), 1) - 1) // PAGE_BYTES + 1):
                pages.setdefault(page, []).append((start, data))
        return pages

    def after_crash(self, rng: Rng) -> bytes | bytearray:
        """Return the content that a power cut leaves, in memory that nothing else uses."""
        size = len(self.memory)
        if self.synced is None:
            if rng.chance(0.3):
                # A sparse file gets its size at once, one with blocks grows with them.
                return bytes(0 if self.blocks is not None else rng.choice((0, rng.below(size + 1))))
            content = bytearray(size)
        elif self.is_replaced:
            return self._small_file_after_crash(rng)
        else:
            content = bytearray(self.synced)
        pages = self._dirty_pages()
        fate = rng.below(4)  # Nothing got out, everything did, or each page by itself (twice as likely).
        for page, writes in pages.items():
            first, second = (
                (0, 0) if fate == 0 else (len(writes), len(writes)) if fate == 1 else self._choose(rng, len(writes))
            )
            before = page * PAGE_BYTES
            border = before + SECTOR_BYTES * rng.below(PAGE_BYTES // SECTOR_BYTES + 1)
            _apply(content, writes[:first], before, min(border, size))
            _apply(content, writes[:second], min(border, size), min(before + PAGE_BYTES, size))
        return content

    @staticmethod
    def _choose(rng: Rng, count: int) -> tuple[int, int]:
        first = rng.choice((0, count, rng.below(count + 1)))
        return first, first if rng.chance(0.7) else rng.below(count + 1)

    def _small_file_after_crash(self, rng: Rng) -> bytes:
        assert self.synced is not None
        new = bytes(self.memory)
        return rng.choice((bytes(self.synced), b"", new, new[: rng.below(len(new) + 1)]))


def _apply(content: bytearray, writes: list[tuple[int, bytes]], start: int, stop: int) -> None:
    for at, data in writes:
        low, high = max(at, start), min(at + len(data), stop)
        if low < high:
            content[low:high] = data[low - at : high - at]


class Folder:
    """Names, and what happened to them since the folder was last synced: (name, node or None) groups."""

    def __init__(self) -> None:
        self.names: dict[str, Node | Folder] = {}
        self.synced: dict[str, Node | Folder] = {}
        self.changes: list[list[tuple[str, Node | Folder | None]]] = []

    def change(self, *changes: tuple[str, "Node | Folder | None"]) -> None:
        for name, node in changes:
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node
        self.changes.append(list(changes))

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.changes.clear()

    def after_crash(self, rng: Rng) -> dict[str, "Node | Folder"]:
        names = dict(self.synced)
        happened = rng.choice((0, len(self.changes), rng.below(len(self.changes) + 1)))
        for group in self.changes[:happened]:
            for name, node in group:
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        return names
