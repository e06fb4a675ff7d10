"""Key-values by namespace, kept in memory and in one small file.

The namespace ORDER_TOPIC_CONFIG has the queues of topics with ordered messages. Clients get the value of a topic with
its route. Brokers get the whole namespace in the answer to a registration, if the name server's settings say so.

Format of kvConfig.json: `{"configTable":{NAMESPACE:{KEY:VALUE}}}`, compact.

Source: RocketMQ KVConfigManager.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem
from services.namesrv.errors import NoConfigError, RefusedError

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

# The limit for the size of the file. Each change rewrites the whole file. RocketMQ has no limit; files in practice hold
# some kilobytes.
KV_BYTES_MAX = 16 * 1024 * 1024

Table = dict[str, dict[str, str]]
"""Namespace → key → value."""

# RocketMQ's clients read the number of queues into a Java int.
_ORDER_ITEM = re.compile(r"[^:]+:0*([1-9][0-9]{0,9})")
_QUEUES_MAX = 2**31 - 1


class _KvFile(msgspec.Struct, rename="camel"):
    config_table: Table = {}


class KvConfig:
    """The key-values.

    `find` and `find_namespace` are for the name server itself, to which a missing value is normal. `get` and
    `get_namespace` answer requests, where a missing value is an error.

    Durability: a change is on disk before it can be read, so a crash never takes back a value that a client has read.

    Concurrency: the event loop's thread. Changes run one after the other. A cancelled change may be on disk although it
    can't be read yet. It then takes effect after a restart. For the client this is the same as a lost reply.
    """

    def __init__(
        self, table: Table, save: Callable[[bytes], Awaitable[None]], *, bytes_max: int = KV_BYTES_MAX
    ) -> None:
        """Create the key-values.

        Args:
            table: The content of the file; see `load_table`.
            save: Replaces the content of the file, and returns when the new content is durable.
            bytes_max: The limit for the size of the file.
        """
        self._table = table
        self._save = save
        self._bytes_max = bytes_max
        self._changing = asyncio.Lock()

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value, or None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises NoConfigError if there is none."""
        value = self.find(namespace, key)
        if value is None:
            raise NoConfigError(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def find_namespace(self, namespace: str) -> Mapping[str, str]:
        """Return all items of a namespace; empty if there are none."""
        return self._table.get(namespace, {})

    def get_namespace(self, namespace: str) -> Mapping[str, str]:
        """Return all items of a namespace. Raises NoConfigError if there are none."""
        items = self._table.get(namespace)
        if not items:
            raise NoConfigError(f"No config item, Namespace: {namespace}")
        return items

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            RefusedError: The namespace or key is empty, the file would become too large, or the namespace is
                ORDER_TOPIC_CONFIG and the value is not an order configuration.
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
    """Check an order configuration: every client of the topic must be able to read it.

    Args:
        text: The number of queues on each broker, `broker-a:4;broker-b:4`. A `;` at the end is allowed.

    Raises:
        RefusedError: The text is not an order configuration.
    """
    for item in text.removesuffix(";").split(";"):
        match = _ORDER_ITEM.fullmatch(item)
        if match is None or int(match[1]) > _QUEUES_MAX:
            raise RefusedError(f"value: {text!r} is no order configuration (broker:queues;…): {item!r}")


def load_table(files: FileSystem, path: str) -> Table:
    """Read the file; return an empty table if it does not exist.

    Raises:
        StartupError: The file exists but can't be read. The name server must not start without it, because the next
            change would overwrite the file.
    """
    try:
        return msgspec.json.decode(files.read(path), type=_KvFile).config_table
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: can't be read ({error}); repair it, or move it away to start without it") from None
