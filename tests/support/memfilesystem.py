"""A file system in memory whose power can be cut: it knows what was synced and what was only written.

A power cut (`crash_clone`) leaves the state that a real disk could leave. Pages are small, so that small tests tear them:

- Bytes: every page of a file holds what some number of its writes since the last sync left behind, from none to
  all, and may be torn between two such states at a sector's border. Pages are chosen independently of each other,
  so later ones may be there and earlier ones not.
- Sizes: a created file that was never synced may be there with fewer bytes, or none at all: ext4 lets a file grow
  while it allocates its blocks.
- Names: of the names created, renamed or removed in a folder since it was last synced, a prefix happened. Other
  folders are independent.
- Holes of sparse files: pages without a block. They count as used space once they are written or allocated.
- Small files (`write`) that were not durable hold the old content, the new one, or the beginning of the new one.

`on_operation` is called before everything that changes anything; tests cut the power there. An OSError that it raises
before a `sync` is a failed one: what was written stays readable, counts as clean and is not on the disk, as Linux has
it, until `drop_cache` shows what is.
"""

import errno
from collections.abc import Callable, Iterable
from typing import Any

from gantry.runtime.clock import Clock
from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import DiskUsage
from gantry.runtime.rng import Rng
from tests.support.memfile import MemFile, MemVolume
from tests.support.memnode import PAGE_BYTES, Folder, Node

CAPACITY_BYTES = 1 << 40

OnOperation = Callable[[str, str], None]


class _MemLock:
    def __init__(self, files: "MemFileSystem", path: str) -> None:
        self._files = files
        self._path = path
        self._node = files.find(path)

    def is_current(self) -> bool:
        return self._files.find(self._path) is self._node

    def release(self) -> None:
        self._files.locked.remove(self._node)


class MemFileSystem:
    """The FileSystem of the tests. Paths are split at `/`; the root always exists."""

    def __init__(
        self, clock: Clock, *, on_operation: OnOperation | None = None, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        self.clock = clock
        self.on_operation = on_operation
        self.capacity_bytes = capacity_bytes
        self.foreign_bytes = 0
        """Bytes that other programs have on the same disk."""
        self.operations = 0
        self.locked: list[Node | Folder | None] = []
        self.cold: set[str] = set()
        """Paths of which nothing is in the page cache."""
        self.cold_touches: list[str] = []
        """Paths of `cold` whose map was read: each would have waited for the disk in a page fault."""
        self.advised: list[tuple[str, int, int]] = []
        """Path, position and size of every `File.prefetch`."""
        self.read_begins: Callable[[str, int, int], None] = lambda path, at, size: None
        """Called with path, position and size before every `File.read`; may raise OSError."""
        self._root = Folder()

    def operate(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def crash_clone(self, rng: Rng) -> "MemFileSystem":
        """Return what a power cut at this moment leaves; nothing is locked there and nothing unsynced is left."""
        clone = MemFileSystem(self.clock, capacity_bytes=self.capacity_bytes)
        _clone_folder(self._root, clone._root, clone, rng)
        return clone

    def create(self, path: str, size_bytes: int, *, sparse: bool = False) -> Any:
        folder, name = self._parent(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.operate("create", path)
        if not sparse and self.used_bytes() + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        node = Node(self, path, bytes(size_bytes), is_synced=False)
        node.blocks = set() if sparse else None
        folder.change((name, node))
        return MemFile(node, path, writable=True)

    def open(self, path: str, *, writable: bool = True) -> Any:
        return MemFile(self._file(path), path, writable=writable)

    def open_volume(self, path: str) -> Any:
        assert self.is_dir(path), path
        return MemVolume(self, path)

    def read(self, path: str) -> bytes:
        return bytes(self._file(path).memory)

    def write(self, path: str, data: bytes | Iterable[bytes], *, durable: bool = False) -> None:
        data = data if isinstance(data, bytes) else b"".join(data)
        folder, name = self._parent(path)
        self.operate("write", path)
        node = folder.names.get(name)
        if isinstance(node, Node):
            node.replace_all(data)
        else:
            node = Node(self, path, data, is_synced=False)
            folder.change((name, node))
        if durable:
            self.operate("write_sync", path)
            node.sync()
            folder.sync()

    def replace(self, source: str, target: str) -> None:
        node = self._file(source)
        self.operate("replace", target)
        source_folder, source_name = self._parent(source)
        target_folder, target_name = self._parent(target)
        assert source_folder is target_folder, "renames stay in their folder"
        source_folder.change((source_name, None), (target_name, node))

    def remove(self, path: str) -> None:
        self._file(path)
        self.operate("remove", path)
        folder, name = self._parent(path)
        folder.change((name, None))

    def remove_dir(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.operate("remove_dir", path)
        folder.change((name, None))

    def make_dirs(self, path: str) -> None:
        folder = self._root
        for name in _parts(path):
            node = folder.names.get(name)
            if node is None:
                self.operate("make_dirs", path)
                node = Folder()
                folder.change((name, node))
            if not isinstance(node, Folder):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            folder = node

    def list_dir(self, path: str) -> list[str]:
        node = self.find(path)
        return sorted(node.names) if isinstance(node, Folder) else []

    def list_files(self, path: str) -> list[tuple[str, int]]:
        node = self.find(path)
        names = node.names if isinstance(node, Folder) else {}
        return sorted((name, len(each.memory)) for name, each in names.items() if isinstance(each, Node))

    def is_dir(self, path: str) -> bool:
        return isinstance(self.find(path), Folder)

    def exists(self, path: str) -> bool:
        return self.find(path) is not None

    def size_bytes(self, path: str) -> int:
        return len(self._file(path).memory)

    def allocated_bytes(self, path: str) -> int:
        return len(self._file(path).memory)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def sync_dir(self, path: str) -> None:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.operate("sync_dir", path)
        node.sync()

    def lock(self, path: str) -> Any:
        if not self.exists(path):
            self.write(path, b"")
        return self.lock_dir(path)

    def lock_dir(self, path: str) -> Any:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if any(node is held for held in self.locked):
            raise AlreadyLockedError(path)
        self.locked.append(node)
        return _MemLock(self, path)

    def drop_cache(self, path: str) -> int:
        node = self._file(path)
        self.sync(node, path)
        node.drop_cache()
        return 0

    def sync(self, node: Node, path: str) -> None:
        try:
            self.operate("sync", path)
        except OSError:
            node.fail_sync()
            raise
        node.sync()

    def sync_volume(self, path: str) -> None:
        try:
            self.operate("syncfs", path)
        except OSError:
            for node in _nodes(self._root):
                node.fail_sync()
            raise
        self.sync_everything()

    def move(self, source: str, target: str) -> None:
        """Move a file or folder as a person does under a running store: what is open stays open."""
        node = self.find(source)
        assert node is not None, source
        source_folder, source_name = self._parent(source)
        target_folder, target_name = self._parent(target)
        source_folder.change((source_name, None))
        target_folder.change((target_name, node))

    def content(self, path: str) -> dict[str, bytes]:
        """Return every file below a folder, and every folder as the empty bytes."""
        found: dict[str, bytes] = {}
        for name in self.list_dir(path):
            inner = f"{path}/{name}"
            found |= {inner: b"", **self.content(inner)} if self.is_dir(inner) else {inner: self.read(inner)}
        return found

    def make_unreadable(self, path: str, start: int, stop: int) -> None:
        """Let the disk fail to read a range of a file, from whole page to whole page."""
        self._file(path).unreadable.append((start - start % PAGE_BYTES, -(-stop // PAGE_BYTES) * PAGE_BYTES))

    def disk_usage(self, path: str) -> DiskUsage:
        used = self.used_bytes()
        return DiskUsage(used=used, usable=max(0, self.capacity_bytes - used))

    def drop_from_memory(self, path: str) -> None:
        """Take a file out of the page cache: `File.read` shows its bytes, and its map nonsense from now on."""
        node = self._file(path)
        self.cold.add(path)
        node.dropped = bytes(memoryview(node.memory))
        bytearray.__setitem__(node.memory, slice(None), b"\xee" * len(node.memory))

    def sync_everything(self) -> None:
        """Make everything durable, as if the power had never gone: what a kill -9 leaves."""
        _sync_folder(self._root)

    def used_bytes(self) -> int:
        return self.foreign_bytes + sum(node.used_bytes() for node in _nodes(self._root))

    def find(self, path: str) -> Node | Folder | None:
        node: Node | Folder | None = self._root
        for name in _parts(path):
            if not isinstance(node, Folder):
                return None
            node = node.names.get(name)
        return node

    def _file(self, path: str) -> Node:
        node = self.find(path)
        if not isinstance(node, Node):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        *parents, name = _parts(path)
        node = self.find("/".join(parents))
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node, name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _nodes(folder: Folder) -> list[Node]:
    found: list[Node] = []
    for node in folder.names.values():
        found += _nodes(node) if isinstance(node, Folder) else [node]
    return found


def _sync_folder(folder: Folder) -> None:
    folder.sync()
    for node in folder.names.values():
        if isinstance(node, Folder):
            _sync_folder(node)
        else:
            node.sync()


def _clone_folder(source: Folder, target: Folder, files: MemFileSystem, rng: Rng) -> None:
    for name, node in source.after_crash(rng).items():
        if isinstance(node, Folder):
            folder = Folder()
            _clone_folder(node, folder, files, rng)
            target.names[name] = folder
        else:
            copy = Node(files, node.path, node.after_crash(rng), is_synced=True)
            copy.modified_ms = node.modified_ms
            copy.blocks = node.blocks and set(node.blocks)
            target.names[name] = copy
    target.sync()
