"""The processes that `gantry up` starts, with their ports and folders. Pure functions of the options.

Ports: the name server listens on 9876, broker i on 10911 + 20·i, the gateway on 8080. The fast port of a broker is 2
below its port. The metrics port of name servers and brokers is 7 above their port. `--port-base` is added to all ports.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gantry.model.address import Address
from gantry.runtime.errors import StartupError

NAMESRV_PORT = 9876
BROKER_PORT = 10911
GATEWAY_PORT = 8080
FAST_PORT_BELOW = 2
METRICS_PORT_ABOVE = 7

BROKERS_DEFAULT = 2
BROKERS_MAX = 26  # broker-a … broker-z.
HOST_DEFAULT = "127.0.0.1"
PORT_BASE_STEP = 1_000
PORT_BASE_MAX = 54_000
# RocketMQ's default name, so that `mqadmin -c DefaultCluster` finds the cluster.
CLUSTER = "DefaultCluster"
FIRST_USER = "admin"
"""The user that the gateway makes at its first start."""

COMMIT_LOG_FILE_BYTES = 256 << 20
INDEX_ENTRIES_MAX = 2_000_000
INDEX_SLOTS_MAX = INDEX_ENTRIES_MAX // 4
INDEX_FILE_BYTES = 40 + 4 * INDEX_SLOTS_MAX + 20 * INDEX_ENTRIES_MAX

# Two CommitLog files (the next file is allocated ahead), one IndexFile, and space for ConsumeQueues.
BROKER_DISK_BYTES = 2 * COMMIT_LOG_FILE_BYTES + INDEX_FILE_BYTES + (64 << 20)
POSTGRES_DISK_BYTES = 300 << 20

BROKER_TOML = f"""\
# Settings of the brokers that `gantry up` starts on this folder. You may change this file.
# The environment variable GANTRY_BROKER_<KEY> overrides a setting.
mapped_file_size_commit_log = {COMMIT_LOG_FILE_BYTES}
max_hash_slot_num = {INDEX_SLOTS_MAX}
max_index_num = {INDEX_ENTRIES_MAX}
"""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of `gantry up`, and their defaults."""

    data: Path
    brokers: int = BROKERS_DEFAULT
    port_base: int = 0
    host: str = HOST_DEFAULT
    advertise: str = HOST_DEFAULT
    database_url: str | None = None
    scheduler: bool = True

    def check(self) -> None:
        """Raise StartupError if an option is out of range."""
        if not 1 <= self.brokers <= BROKERS_MAX:
            raise StartupError(f"--brokers {self.brokers}: must be between 1 and {BROKERS_MAX}")
        if self.port_base % PORT_BASE_STEP or not 0 <= self.port_base <= PORT_BASE_MAX:
            raise StartupError(
                f"--port-base {self.port_base}: must be a multiple of {PORT_BASE_STEP} between 0 and {PORT_BASE_MAX}"
            )


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the stack: `python -m module arguments`."""

    name: str
    module: str
    arguments: tuple[str, ...]
    ports: tuple[int, ...]
    ready_file: Path


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The address and the store folder of a broker, as listed in stack.json."""

    name: str
    address: str
    store: Path


class Layout:
    """The processes of a stack and their folders below its data folder."""

    def __init__(self, options: StackOptions, *, exists: Callable[[Path], bool] = Path.exists) -> None:
        self._options = options
        self._exists = exists
        self.data = options.data
        self.logs = self.data / "logs"
        self.ready = self.data / "ready"
        self.key_file = self.data / "api-key"
        self.password_file = self.data / "admin-password"
        self.gateway_data = self.data / "gateway-0"
        self.reports = self.data / "reports"
        self.stack_file = self.data / "stack.json"
        self.lock_file = self.data / "lock"
        self.broker_toml = self.data / "broker.toml"

    @property
    def namesrv_addresses(self) -> list[str]:
        """The addresses that brokers and gateways use for name servers."""
        return [self._advertised(NAMESRV_PORT + self._options.port_base)]

    @property
    def http(self) -> str:
        """The gateway's base URL."""
        return f"http://{self._advertised(GATEWAY_PORT + self._options.port_base)}"

    @property
    def console(self) -> str:
        """The address of the browser console."""
        return f"{self.http}/console"

    @property
    def brokers(self) -> list[BrokerEntry]:
        """The brokers in order: broker-a, broker-b, …."""
        return [
            BrokerEntry(
                name=name,
                address=self._advertised(self._broker_port(index)),
                store=self.data / name,
            )
            for index, name in enumerate(broker_names(self._options.brokers))
        ]

    def namesrv(self) -> Service:
        """The name server."""
        port = NAMESRV_PORT + self._options.port_base
        folder = str(self.data / "namesrv-0")
        return self._service("namesrv-0", "namesrv", port, (port, port + METRICS_PORT_ABOVE), "--data", folder)

    def broker(self, index: int) -> Service:
        """Broker number `index`."""
        place = self.brokers[index]
        port = self._broker_port(index)
        return self._service(
            place.name,
            "broker",
            port,
            (port, port - FAST_PORT_BELOW, port + METRICS_PORT_ABOVE),
            *("--namesrv", ";".join(self.namesrv_addresses)),
            *("--name", place.name),
            *("--cluster", CLUSTER),
            *("--advertise", self._options.advertise),
            *("--store", str(place.store)),
        )

    def gateway(self) -> Service:
        """The gateway. Its database URL is passed in the environment, because `ps` shows arguments to other users."""
        port = GATEWAY_PORT + self._options.port_base
        return self._service(
            "gateway-0",
            "gateway",
            port,
            (port,),
            *("--namesrv", ";".join(self.namesrv_addresses)),
            *("--data", str(self.gateway_data)),
        )

    def scheduler(self) -> Service:
        """The report scheduler. It has no port. Its database URL is passed in the environment."""
        return self._process(
            "scheduler",
            "spark.scheduler",
            (),
            *("--namesrv", ";".join(self.namesrv_addresses)),
            *("--output", str(self.reports)),
        )

    def services(self) -> Iterator[Service]:
        """Yield the services that listen on ports, in the order of their start."""
        yield self.namesrv()
        for index in range(self._options.brokers):
            yield self.broker(index)
        yield self.gateway()

    def disk_bytes(self) -> int:
        """Return the disk space that a new stack allocates."""
        return self._options.brokers * BROKER_DISK_BYTES + (0 if self._options.database_url else POSTGRES_DISK_BYTES)

    def _advertised(self, port: int) -> str:
        return str(Address(self._options.advertise, port))

    def _broker_port(self, index: int) -> int:
        return BROKER_PORT + 20 * index + self._options.port_base

    def _service(self, name: str, kind: str, port: int, ports: tuple[int, ...], *arguments: str) -> Service:
        listen = ("--listen", str(Address(self._options.host, port)))
        return self._process(name, f"services.{kind}", ports, *listen, *arguments)

    def _process(self, name: str, module: str, ports: tuple[int, ...], *arguments: str) -> Service:
        ready_file = self.ready / f"{name}.json"
        config = self.data / f"{module.rpartition('.')[2]}.toml"
        return Service(
            name=name,
            module=module,
            arguments=(
                *arguments,
                *(("--config", str(config)) if self._exists(config) else ()),
                *("--ready-file", str(ready_file)),
            ),
            ports=ports,
            ready_file=ready_file,
        )


def broker_names(count: int) -> list[str]:
    """Return `broker-a`, `broker-b`, …."""
    return [f"broker-{chr(ord('a') + index)}" for index in range(count)]
