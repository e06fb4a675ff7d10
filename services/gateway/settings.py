"""Settings of the gateway."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from gantry.runtime.hostport import split_host_port

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""On the wire; the contract fixes it, so it is no setting."""
METADATA_BYTES_MAX: Final = 512 * 1024
"""The limit of a body that is no message. A topic that names 1,000 brokers is the largest that makes sense, and reading this much twice
to find a key that stands twice holds the event loop for less than 20 ms."""
BODY_RESERVE_PART: Final = 8
"""One part in so many of `body_bytes_total_max` is kept for small bodies."""
OFFSETS_BYTES_MAX: Final = 1024 * 1024
"""The limit of a body that sets offsets: 1,000 queues with the longest names."""


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
    key_in_flight_max: int = 1_000
    """Requests of one key at once; past it 429. Half of all, so that no key alone shuts the others out."""
    long_polls_max: int = 4_000
    """Requests at once that wait for a message, which are not among those of `in_flight_max`; past it 503. Each takes a
    connection and about 20 KiB."""
    key_long_polls_max: int = 1_000
    """Waiting requests of one key; past it 429."""
    streams_max: int = 2_000
    """WebSockets at once; past it 503. One costs up to 256 KiB while its client does not read."""
    key_streams_max: int = 500
    """Those of one key; past it 429."""
    address_streams_max: int = 1_000
    """Those from one address; past it 429. Half of all, since a proxy is one address, too."""
    waiting_queues_max: int = 32_768
    """Queues of streams that wait at their brokers for messages: half of the requests that the connection to a broker may
    have under way, as sends need it, too. Each further queue is looked at once a second."""
    key_waiting_queues_max: int = 8_192
    """Those of one key."""
    key_tickets_max: int = 500
    """Tickets of one key that are neither used nor 60 s old; past it 429. A console's key opens the streams of all who
    use it."""
    key_requests_per_s: int = 0
    """Requests of one key a second; past it 429. 0: as many as there are, since one key is often a whole service."""
    address_requests_per_s: int = 0
    """Requests of one address a second, with a key or without; past it 429. 0: as many as there are, since one address
    is often a proxy."""
    body_bytes_total_max: int = 64 * 1024 * 1024
    """Bytes of request bodies and of messages of streams in memory; past it 503, and streams are not read. The last
    eighth is for bodies of up to 64 KiB. A body takes twice its bytes for the moment in which it becomes whole."""
    key_body_bytes_max: int = 16 * 1024 * 1024
    """Those of one key: a quarter of all, and two of the largest requests; past it 429, and its streams are not
    read."""
    address_body_bytes_max: int = 2 * 1024 * 1024
    """Those of one address that come before anybody knows whose they are, since they stand behind a request that is not
    answered yet; past it 429."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Bytes of answers and frames in memory that callers have not taken; past it 503."""
    key_unsent_bytes_max: int = 32 * 1024 * 1024
    """Those for one key; past it reads and batches are answered 429, and its streams get messages only as fast as they
    are read. Half of all. One answer of any size may go above it: a message of 4 MiB whose characters JSON escapes has
    24 MiB."""
    address_unsent_bytes_max: int = 8 * 1024 * 1024
    """Those for requests without a key from one address; past it 429."""
    connections_max: int = 10_000
    """Connections at once, streams included. At the limit, a connection that does nothing makes room for a new one."""
    connections_per_address_max: int = 5_000
    """The same for one address (of IPv6: one /64), so that one address leaves half to the others. Behind a proxy every
    caller has the proxy's address: set it to `connections_max` there."""
    keep_alive_ms: int = 75_000
    """An idle connection is closed after this long; longer than the 60 s after which load balancers do so."""
    header_timeout_ms: int = 10_000
    """From a connection's (or request's) first byte to the end of its head, or to the answer of a WebSocket handshake."""
    body_timeout_ms: int = 60_000
    """From the end of the head to the end of the body; 8 MiB at 140 kB/s."""
    write_timeout_ms: int = 30_000
    """How long a caller may take nothing of its answer; then the connection is dropped, and its memory is free."""
    drain_ms: int = 5_000
    """How long, after SIGTERM, `/readyz` says no while requests are still served, so that load balancers turn to others.
    Without a load balancer it only delays the stop, so `gantry up` sets 0."""
    stop_timeout_ms: int = 8_000
    """How long requests under way may go on after that."""

    key_poll_interval_ms: int = 10_000
    """How often keys are read from Postgres; a revoked one opens nothing after at most this and one time-out."""
    reconcile_interval_ms: int = 30_000
    mirror_interval_ms: int = 30_000
    sample_interval_ms: int = 15_000
    """How often the offsets of all groups are sampled, so that lag has a history; 0: never."""
    sample_raw_hours: int = 24
    """How long samples are kept as they are; then one a minute, after a week one in 15 minutes, after 30 days one an hour."""
    sample_keep_days: int = 90
    """How long samples are kept."""
    lag_series_max: int = 2_000
    """For how many groups and topics `/metrics` has series of lag: those furthest behind; 0: none."""
    audit_keep_days: int = 90
    """How long rows of the audit trail are kept; 0: for ever. Of a topic or a group the last row stays."""
    webhook_timeout_ms: int = 10_000
    """For one attempt to tell a webhook, from the look-up of its name to the head of its answer."""
    webhook_give_up_ms: int = 86_400_000
    """How long a webhook is tried to be told of an event: a day, so that a receiver may be away over night."""
    webhook_private_networks: tuple[str, ...] = ()
    """Networks such as `10.1.0.0/16` to which webhooks may be sent though they are not public. None: an admin of webhooks must not
    reach services that only the gateway can reach."""
    subscription_keep_days: int = 365
    """How long a subscription is kept after its last consumer has gone; 0: for ever. The last subscription of each topic stays
    if a broker knows the group."""
    broker_timeout_ms: int = 3_000
    """For one question to a broker in an admin call."""
    access_log: bool = False

    cors_origins: tuple[str, ...] = ()
    """Origins such as `https://console.example` whose pages may call and read answers; `*` is any. None: no page may."""
    public_contract: bool = True
    """Whether `OPTIONS` and `/openapi.json` need no key. The contract is no secret; with False nobody without a key learns
    from the gateway which paths there are."""

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
        if not 0 <= self.subscription_keep_days <= _KEEP_DAYS_MAX:
            raise ValueError(
                f"subscription_keep_days: {self.subscription_keep_days} is not within 0 and {_KEEP_DAYS_MAX}"
            )
        # 20 s of polling and a hanging Postgres still end within the 30 s that are promised.
        if self.key_poll_interval_ms > _KEY_POLL_MS_MAX:
            raise ValueError(f"key_poll_interval_ms: {self.key_poll_interval_ms} is above {_KEY_POLL_MS_MAX}")

    @property
    def private_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return `webhook_private_networks`, read."""
        return [ipaddress.ip_network(network) for network in self.webhook_private_networks]

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of `listen`. Raises ValueError if it is not HOST:PORT."""
        return split_host_port(self.listen, field="listen")


# Scheme, host and port, as browsers write them: no path, no capital letters.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+", re.ASCII)
_KEY_POLL_MS_MAX = 20_000
_SAMPLE_MS_MIN = 100
# Readers look five minutes back for what does not change (usecases/sampleblocks.py).
_SAMPLE_MS_MAX = 45_000
# Minutes are kept for a week.
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
    "reconcile_interval_ms",
    "mirror_interval_ms",
    "webhook_timeout_ms",
    "webhook_give_up_ms",
    "broker_timeout_ms",
)
