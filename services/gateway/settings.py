"""Settings of the gateway."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from gantry.runtime.hostport import split_host_port

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit of a request body on the wire. The contract fixes it, so it is no setting."""
METADATA_BYTES_MAX: Final = 512 * 1024
"""Limit of a body that is no message. The largest sensible one is a topic that names 1,000 brokers. To find a repeated
key, the gateway reads the body twice, which blocks the event loop for less than 20 ms."""
BODY_RESERVE_PART: Final = 8
"""Divisor of `body_bytes_total_max`; the result is the part that is reserved for small bodies."""
OFFSETS_BYTES_MAX: Final = 1024 * 1024
"""Limit of a body that sets offsets: 1,000 queues with the longest names."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings, with their defaults; times in ms."""

    listen: str = "127.0.0.1:8080"
    name: str = "gateway-0"
    namesrv: tuple[str, ...] = ("127.0.0.1:9876",)
    database_url: str | None = None
    """`postgresql://…`. Without a database there is no metadata: messages flow, and admin calls fail with 503."""
    data_dir: str = ".gantry/gateway"
    """Folder of the cache of API keys (digests only, mode 0600)."""
    first_key_file: str | None = None
    """File for the first API key, which the gateway creates if there is no key yet; mode 0600, by default in
    `data_dir`."""
    keep_first_key_file: bool = False
    """Whether a start without a `first_key_file` creates one more key with all rights and writes it to that file."""
    first_password_file: str | None = None
    """File for the password of `admin`, the first user, whom the gateway creates if there are no users yet; mode 0600, by
    default in `data_dir`."""
    secure_cookies: bool = False
    """Whether browsers may send the cookie of a session over HTTPS only. Set it if a proxy in front of the gateway speaks
    HTTPS; a gateway that is called over HTTPS itself does so in any case."""
    client_ip: str = "127.0.0.1"
    """Address in message ids, which distinguishes machines."""

    send_timeout_ms: int = 3_000
    wait_ms_max: int = 30_000
    """Limit of the time that a read of a queue waits for a message."""
    in_flight_max: int = 2_000
    """Limit of concurrent requests; beyond it 503. Each may hold a body of 8 MiB, so `body_bytes_total_max` limits
    bodies."""
    key_in_flight_max: int = 1_000
    """Limit of concurrent requests of one key; beyond it 429. Half of all, so that no key can lock out the others."""
    long_polls_max: int = 4_000
    """Limit of concurrent requests that wait for a message; beyond it 503. `in_flight_max` does not include them. Each
    takes a connection and about 20 KiB."""
    key_long_polls_max: int = 1_000
    """Limit of waiting requests of one key; beyond it 429."""
    streams_max: int = 2_000
    """Limit of concurrent WebSockets; beyond it 503. Each takes up to 256 KiB while its client does not read."""
    key_streams_max: int = 500
    """Limit of WebSockets of one key; beyond it 429."""
    address_streams_max: int = 1_000
    """Limit of WebSockets from one address; beyond it 429. Half of all, because a proxy is one address, too."""
    waiting_queues_max: int = 32_768
    """Limit of queues of streams whose pulls wait at brokers: half of the requests in flight that a connection to a
    broker allows, because sends need it, too. Each further queue is polled once a second."""
    key_waiting_queues_max: int = 8_192
    """Limit of such queues of one key."""
    key_tickets_max: int = 500
    """Limit of tickets of one key that are neither used nor 60 s old; beyond it 429. The key of a console opens the
    streams of all its users."""
    key_requests_per_s: int = 0
    """Limit of requests of one key a second; beyond it 429. 0: no limit, because one key is often a whole service."""
    address_requests_per_s: int = 0
    """Limit of requests of one address a second, with or without a key; beyond it 429. 0: no limit, because one address
    is often a proxy."""
    body_bytes_total_max: int = 64 * 1024 * 1024
    """Limit of the bytes of request bodies and stream messages in memory; beyond it 503, and streams are not read. The
    last eighth is reserved for bodies of up to 64 KiB. A body briefly takes twice its size while its parts are
    joined."""
    key_body_bytes_max: int = 16 * 1024 * 1024
    """Limit of such bytes of one key: a quarter of all, and two of the largest requests; beyond it 429, and the streams
    of the key are not read."""
    address_body_bytes_max: int = 2 * 1024 * 1024
    """Limit of such bytes of one address whose key is not known yet, because they follow a request that is not answered
    yet; beyond it 429."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Limit of the bytes of answers and frames in memory that callers have not read yet; beyond it 503."""
    key_unsent_bytes_max: int = 32 * 1024 * 1024
    """Limit of such bytes for one key: half of all. Beyond it, reads and batches fail with 429, and the streams of the
    key get messages only as fast as they are read. One answer of any size may exceed it: a message of 4 MiB takes 24
    MiB if JSON escapes its characters."""
    address_unsent_bytes_max: int = 8 * 1024 * 1024
    """Limit of such bytes for requests without a key from one address; beyond it 429."""
    connections_max: int = 10_000
    """Limit of concurrent connections, streams included. At the limit, the gateway closes an idle connection for a new
    one."""
    connections_per_address_max: int = 5_000
    """Limit of connections of one address (IPv6: one /64), so that half remains for other addresses. Behind a proxy,
    all callers have the address of the proxy: set this to `connections_max` there."""
    keep_alive_ms: int = 75_000
    """Time after which an idle connection is closed; longer than the 60 s of load balancers."""
    header_timeout_ms: int = 10_000
    """Time from the first byte of a connection or request to the end of its head, or to the answer of a WebSocket
    handshake."""
    body_timeout_ms: int = 60_000
    """Time from the end of the head to the end of the body; enough for 8 MiB at 140 kB/s."""
    write_timeout_ms: int = 30_000
    """Time that a caller may read nothing of its answer. After it, the gateway drops the connection and frees its
    memory."""
    drain_ms: int = 5_000
    """Time after SIGTERM in which `/readyz` fails while the gateway still serves requests, so that load balancers use
    other gateways. Without a load balancer it only delays the stop, so `gantry up` sets 0."""
    stop_timeout_ms: int = 8_000
    """Time after `drain_ms` in which requests in flight may end."""

    key_poll_interval_ms: int = 10_000
    """Interval of reading the keys from Postgres; a revoked key is rejected after at most this time and one
    time-out."""
    reconcile_interval_ms: int = 30_000
    mirror_interval_ms: int = 30_000
    sample_interval_ms: int = 15_000
    """Interval of sampling the offsets of all groups for the history of lag; 0: never."""
    sample_raw_hours: int = 24
    """Time for which all samples are kept; then one a minute, after a week one in 15 minutes, after 30 days one an
    hour."""
    sample_keep_days: int = 90
    """Time for which samples are kept."""
    lag_series_max: int = 2_000
    """Limit of pairs of group and topic whose lag is in `/metrics`: those furthest behind; 0: none."""
    audit_keep_days: int = 90
    """Time for which rows of the audit trail are kept; 0: for ever. The last row of each topic and group is always
    kept."""
    job_keep_days: int = 30
    """Time for which jobs are listed after their end; 0: for ever."""
    transaction_keep_days: int = 30
    """Time for which transactions are listed after their end; 0: for ever."""
    transaction_mirror_interval_ms: int = 5_000
    """Interval of listing the open transactions of all brokers."""
    webhook_timeout_ms: int = 10_000
    """Time-out of one delivery attempt, from the look-up of the host name to the head of the answer."""
    webhook_give_up_ms: int = 86_400_000
    """Time for which the delivery of an event is retried: a day, so that a receiver may be down overnight."""
    webhook_private_networks: tuple[str, ...] = ()
    """Private networks such as `10.1.0.0/16` to which webhooks may be sent. None by default, so that an admin of
    webhooks cannot reach services that only the gateway can reach."""
    subscription_keep_days: int = 365
    """Time for which a subscription is kept after its last consumer has left; 0: for ever. The last subscription of
    each topic is kept if a broker knows the group."""
    broker_timeout_ms: int = 3_000
    """Time-out of one request to a broker in an admin call."""
    trace_messages: bool = False
    """Whether the gateway writes trace data about the messages that callers send and consume. The brokers need
    `traceTopicEnable`."""
    access_log: bool = False

    cors_origins: tuple[str, ...] = ()
    """Origins such as `https://console.example` whose pages may call the gateway and read answers; `*` allows all
    origins. Empty: no page may."""
    public_contract: bool = True
    """Whether `OPTIONS` and `/openapi.json` need no key. The contract is no secret; False hides the paths from callers
    without a key."""

    def check(self) -> None:
        """Raise ValueError("name: reason") for the first setting that is out of range."""
        _ = self.address
        if not self.namesrv:
            raise ValueError("namesrv: names no name server")
        large_bytes_max = self.body_bytes_total_max - self.body_bytes_total_max // BODY_RESERVE_PART
        for name, bytes_max in (
            ("body_bytes_total_max", large_bytes_max),
            ("key_body_bytes_max", self.key_body_bytes_max),
        ):
            if bytes_max < REQUEST_BYTES_MAX:
                raise ValueError(f"{name}: must have room for one request of {REQUEST_BYTES_MAX} bytes")
        if self.drain_ms < 0:
            raise ValueError(f"drain_ms: {self.drain_ms} is below 0")
        for origin in self.cors_origins:
            if origin != "*" and _ORIGIN.fullmatch(origin) is None:
                raise ValueError(
                    f"cors_origins: {origin!r} is neither `*` nor an origin such as https://console.example"
                )
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("key_requests_per_s", "address_requests_per_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        for text in self.webhook_private_networks:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise ValueError(f"webhook_private_networks: {error}") from None
        if self.sample_interval_ms != 0 and not _SAMPLE_MS_MIN <= self.sample_interval_ms <= _SAMPLE_MS_MAX:
            raise ValueError(
                f"sample_interval_ms: {self.sample_interval_ms} is neither 0 nor within {_SAMPLE_MS_MIN} and {_SAMPLE_MS_MAX}"
            )
        if not 1 <= self.sample_raw_hours <= _RAW_HOURS_MAX:
            raise ValueError(f"sample_raw_hours: {self.sample_raw_hours} is not within 1 and {_RAW_HOURS_MAX}")
        if not 1 <= self.sample_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(f"sample_keep_days: {self.sample_keep_days} is not within 1 and {_KEEP_DAYS_MAX}")
        if not 0 <= self.lag_series_max <= _LAG_SERIES_MAX:
            raise ValueError(f"lag_series_max: {self.lag_series_max} is not within 0 and {_LAG_SERIES_MAX}")
        if not 0 <= self.audit_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(f"audit_keep_days: {self.audit_keep_days} is not within 0 and {_KEEP_DAYS_MAX}")
        if not 0 <= self.job_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(f"job_keep_days: {self.job_keep_days} is not within 0 and {_KEEP_DAYS_MAX}")
        if not 0 <= self.transaction_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(
                f"transaction_keep_days: {self.transaction_keep_days} is not within 0 and {_KEEP_DAYS_MAX}"
            )
        if not 0 <= self.subscription_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(
                f"subscription_keep_days: {self.subscription_keep_days} is not within 0 and {_KEEP_DAYS_MAX}"
            )
        # 20 s of polling plus a time-out of Postgres stay within the promised 30 s.
        if self.key_poll_interval_ms > _KEY_POLL_MS_MAX:
            raise ValueError(f"key_poll_interval_ms: {self.key_poll_interval_ms} is above {_KEY_POLL_MS_MAX}")

    @property
    def private_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return `webhook_private_networks`, parsed."""
        return [ipaddress.ip_network(network) for network in self.webhook_private_networks]

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of `listen`. Raises ValueError if it is not HOST:PORT."""
        return split_host_port(self.listen, field="listen")


# Scheme, host and port, as browsers write them: no path, no capital letters.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+", re.ASCII)
_KEY_POLL_MS_MAX = 20_000
_SAMPLE_MS_MIN = 100
# Readers look back five minutes for pairs that do not change (usecases/sampling/blocks.py).
_SAMPLE_MS_MAX = 45_000
# Samples a minute apart are kept for a week.
_RAW_HOURS_MAX = 168
_KEEP_DAYS_MAX = 3_650
_LAG_SERIES_MAX = 50_000
_POSITIVE = (
    "send_timeout_ms",
    "wait_ms_max",
    "in_flight_max",
    "key_in_flight_max",
    "long_polls_max",
    "key_long_polls_max",
    "streams_max",
    "key_streams_max",
    "address_streams_max",
    "waiting_queues_max",
    "key_waiting_queues_max",
    "key_tickets_max",
    "key_body_bytes_max",
    "unsent_bytes_max",
    "key_unsent_bytes_max",
    "address_unsent_bytes_max",
    "address_body_bytes_max",
    "connections_max",
    "connections_per_address_max",
    "keep_alive_ms",
    "header_timeout_ms",
    "body_timeout_ms",
    "write_timeout_ms",
    "stop_timeout_ms",
    "key_poll_interval_ms",
    "transaction_mirror_interval_ms",
    "reconcile_interval_ms",
    "mirror_interval_ms",
    "webhook_timeout_ms",
    "webhook_give_up_ms",
    "broker_timeout_ms",
)
