"""Settings of the gateway."""

from dataclasses import dataclass
from typing import Final

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""On the wire; the contract fixes it, so it is no setting."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings, with their defaults; times in ms."""

    listen: str = "127.0.0.1:8080"
    name: str = "gateway-0"
    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    database_url: str | None = None
    """`postgresql://…`; without one there is no metadata: messages flow, admin calls are 503."""
    data_dir: str = ".gantry/gateway"
    """Holds the cache of API keys (digests only, mode 0600)."""
    first_key_file: str | None = None
    """Where the key that is made when there is none yet is written, mode 0600; by default in `data_dir`."""
    keep_first_key_file: bool = False
    """Whether a start that finds no `first_key_file` makes one more key with all rights and writes it there."""
    client_ip: str = "127.0.0.1"
    """In message ids, to tell machines apart."""

    send_timeout_ms: int = 3_000
    wait_ms_max: int = 30_000
    """How long a read of a queue may wait for a message."""
    in_flight_max: int = 2_000
    """Requests at once; past it 503. Each may hold a body of 8 MiB, so `body_bytes_total_max` bounds those."""
    body_bytes_total_max: int = 256 * 1024 * 1024
    connections_max: int = 10_000
    keep_alive_ms: int = 75_000
    """An idle connection is closed after this long; longer than the 60 s after which load balancers do so."""
    header_timeout_ms: int = 10_000
    """From a connection's (or request's) first byte to the end of its head."""
    body_timeout_ms: int = 60_000
    """From the end of the head to the end of the body; 8 MiB at 140 kB/s."""
    stop_timeout_ms: int = 8_000
    """How long requests under way may go on after SIGTERM."""

    key_poll_interval_ms: int = 10_000
    """How often keys are read from Postgres; a revoked one opens nothing after at most this and one time-out."""
    reconcile_interval_ms: int = 30_000
    mirror_interval_ms: int = 30_000
    sample_interval_ms: int = 15_000
    """How often the offsets of all groups are sampled, so that lag has a history; 0: never."""
    sample_keep_days: int = 90
    """How long samples are kept."""
    broker_timeout_ms: int = 3_000
    """For one question to a broker in an admin call."""
    access_log: bool = False

    def check(self) -> None:
        """Raise ValueError("name: reason") for the first setting that is out of range."""
        host, _, port = self.listen.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise ValueError(f"listen: {self.listen!r} is not HOST:PORT")
        if not self.namesrv:
            raise ValueError("namesrv: names no name server")
        if self.body_bytes_total_max < REQUEST_BYTES_MAX:
            raise ValueError(f"body_bytes_total_max: must have room for one request of {REQUEST_BYTES_MAX} bytes")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.sample_interval_ms != 0 and not _SAMPLE_MS_MIN <= self.sample_interval_ms <= _SAMPLE_MS_MAX:
            raise ValueError(
                f"sample_interval_ms: {self.sample_interval_ms} is neither 0 nor within {_SAMPLE_MS_MIN} and {_SAMPLE_MS_MAX}"
            )
        if not 1 <= self.sample_keep_days <= _SAMPLE_DAYS_MAX:
            raise ValueError(f"sample_keep_days: {self.sample_keep_days} is not within 1 and {_SAMPLE_DAYS_MAX}")
        # 20 s of polling and a hanging Postgres still end within the 30 s that are promised.
        if self.key_poll_interval_ms > _KEY_POLL_MS_MAX:
            raise ValueError(f"key_poll_interval_ms: {self.key_poll_interval_ms} is above {_KEY_POLL_MS_MAX}")

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


_KEY_POLL_MS_MAX = 20_000
_SAMPLE_MS_MIN = 100
# Readers look five minutes back for the last row of what does not change (usecases/sampling.py).
_SAMPLE_MS_MAX = 45_000
_SAMPLE_DAYS_MAX = 3_650
_POSITIVE = (
    "send_timeout_ms",
    "wait_ms_max",
    "in_flight_max",
    "connections_max",
    "keep_alive_ms",
    "header_timeout_ms",
    "body_timeout_ms",
    "stop_timeout_ms",
    "key_poll_interval_ms",
    "reconcile_interval_ms",
    "mirror_interval_ms",
    "broker_timeout_ms",
)
