"""The limits of a connection, and the counters that show when a limit was reached."""

from dataclasses import asdict, dataclass

from gantry.remoting.command import FRAME_BYTES_MAX

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """The limits of every connection."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    # The size of the incomplete frames of all connections. Above the limit, a connection that holds more than 1 MiB is
    # closed. Otherwise ten thousand peers could use all memory: each sends most of a 16 MiB frame and then waits.
    buffered_bytes_max: int = 512 * MIB
    # Requests of the peer that wait for our response. RocketMQ's clients allow 65,535 requests at once, and a gateway
    # holds one long poll for each queue and instance on one connection. Requests above the limit get code 2.
    in_flight_max: int = 65_535
    # Our requests that wait for the response of the peer. Requests above the limit raise BackpressureError.
    pending_max: int = 65_535
    # Above this size a server stops reading requests from a slow reader. About a hundred pull replies of 32 KiB fit.
    write_buffer_high_bytes: int = 4 * MIB
    # Held pulls and notifications may add bytes even above `write_buffer_high_bytes`. Above this limit a server aborts
    # the connection.
    write_buffer_bytes_max: int = 64 * MIB
    # RocketMQ's clients and servers use the same value. A heartbeat comes every 30 s, so a healthy connection never
    # reaches it.
    idle_timeout_ms: int = 120_000
    handshake_timeout_ms: int = 10_000
    # A closed connection is aborted after this time if the peer does not read the last bytes.
    linger_ms: int = 5_000
    # The precision of time-outs: each endpoint has one timer, which checks all requests at this interval.
    sweep_interval_ms: int = 100


@dataclass(frozen=True, slots=True)
class ServerLimits(ChannelLimits):
    """The limits of a server."""

    # File descriptors run out before any other resource. A store needs some thousands of descriptors too.
    connections_max: int = 10_000
    backlog_max: int = 1024


@dataclass(frozen=True, slots=True)
class ClientLimits(ChannelLimits):
    """The limits of a client."""

    connect_timeout_ms: int = 3_000


@dataclass(slots=True)
class Counters:
    """Counts of events on an endpoint since its start, for metrics and tests."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    closed_idle: int = 0
    closed_slow: int = 0
    closed_overfull: int = 0
    closed_handshake: int = 0
    protocol_errors: int = 0
    frames_too_large: int = 0
    tls_errors: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    bad_requests: int = 0
    handler_errors: int = 0
    unsupported_requests: int = 0
    refused_in_flight: int = 0
    refused_stopping: int = 0
    unknown_responses: int = 0
    timed_out_requests: int = 0
    dropped_replies: int = 0

    def snapshot(self) -> dict[str, int]:
        """Return all counters by name."""
        return asdict(self)
