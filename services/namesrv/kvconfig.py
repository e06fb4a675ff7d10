"""Key-values by namespace, kept in one small file. Clients read ORDER_TOPIC_CONFIG from it.

Format of kvConfig.json: `{"configTable":{NAMESPACE:{KEY:VALUE}}}`, compact.

Source: RocketMQ KVConfigManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from services.namesrv.errors import NoConfigError, RefusedError

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

# Each change rewrites the whole file. RocketMQ has no limit; files in practice hold some kilobytes.
KV_BYTES_MAX = 16 * 1024 * 1024

Table = dict[str, dict[str, str]]


class _KvFile(msgspec.Struct, rename="camel"):
    config_table: Table = {}


class KvConfig:
    """The key-values.

    Durability: a change is on disk before it can be read, so a crash never takes back a value that a client has read.

    Concurrency: the event loop's thread. Changes run one after the other. A cancelled change may be on disk. It then
    takes effect after a restart, as if the reply had been lost.
    """

    def __init__(
        self, table: Table, save: Callable[[bytes], Awaitable[None]], *, bytes_max: int = KV_BYTES_MAX
    ) -> None:
        """Create the key-values from a loaded table. `save` writes the file and returns when it is durable."""
        self._table = table
        self._save = save
        self._bytes_max = bytes_max
        self._changing = asyncio.Lock()

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value, or None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises NoConfigError."""
        value = self.find(namespace, key)
        if value is None:
            raise NoConfigError(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def find_namespace(self, namespace: str) -> Mapping[str, str]:
        """Return all items of a namespace; empty if there are none."""
        return self._table.get(namespace, {})

    def namespace(self, namespace: str) -> Mapping[str, str]:
        """Return all items of a namespace. Raises NoConfigError if there are none."""
        items = self._table.get(namespace)
        if not items:
            raise NoConfigError(f"No config item, Namespace: {namespace}")
        return items

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            RefusedError: The namespace or key is empty, a value in the namespace of order configurations is not one, or
                the file would become too large.
            OSError: The file can't be written; nothing has changed.
        """
        for field, text in (("namespace", namespace), ("key", key)):
            if not text:
                raise RefusedError(f"{field}: is empty")
        if namespace == ORDER_TOPIC_CONFIG:
            check_order_conf(value)
        async with self._changing:
            await self._replace({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists.

        Raises:
            OSError: The file can't be written; nothing has changed.
        """
        async with self._changing:
            items = dict(self._table.get(namespace, {}))
            if items.pop(key, None) is None:
                return
            table = {**self._table, namespace: items}
            if not items:
                del table[namespace]
            await self._replace(table)

    async def _replace(self, table: Table) -> None:
        data = msgspec.json.encode(_KvFile(config_table=table))
        if len(data) > self._bytes_max:
            raise RefusedError(
                f"value: all key-values would have {len(data)} bytes, at most {self._bytes_max} are kept"
            )
        await self._save(data)
        self._table = table


def check_order_conf(text: str) -> None:
    """Check an order configuration, `broker:queues;broker:queues`: every client of the topic must be able to read it.

    Raises:
        RefusedError: The text is not an order configuration.
    """
    for item in text.removesuffix(";").split(";"):
        name, separator, count = item.partition(":")
        if not separator or not name or not count.isascii() or not count.isdigit() or int(count) == 0:
            raise RefusedError(f"value: {text!r} is no order configuration (broker:queues;…): {item!r}")


def load_table(files: FileSystem, path: str) -> Table:
    """Read the file; return an empty table if it does not exist.

    Raises:
        StartupError: The file exists but can't be read. A start without it would lose its content at the next change.
    """
    try:
        return msgspec.json.decode(files.read(path), type=_KvFile).config_table
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"{path}: can't be read ({error}); repair it, or move it away to start without it") from None
