"""What a connection may cost, and the counters that show when a limit was met."""

from dataclasses import asdict, dataclass

from gantry.remoting.command import FRAME_BYTES_MAX

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """The limits of every connection."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    # Unfinished frames of all connections together. Beyond, those that hold more than a MiB are closed: ten thousand
    # peers that each send most of a 16 MiB frame and then wait must not take all memory.
    buffered_bytes_max: int = 512 * MIB
    # Requests of the peer that wait for our answer. RocketMQ's clients allow themselves 65,535 at once, and a
    # gateway holds one long poll a queue and instance on one connection. Beyond: code 2.
    in_flight_max: int = 65_535
    # Requests of ours that wait for the peer's answer. Beyond: BackpressureError.
    pending_max: int = 65_535
    # A hundred pull replies of 32 KiB fit before a slow reader stops us from reading its next requests.
    write_buffer_high_bytes: int = 4 * MIB
    # Held pulls and notifications may still add to it then; a peer that lets this much pile up is given up.
    write_buffer_bytes_max: int = 64 * MIB
    # RocketMQ's on both sides. Heart-beats come every 30 s, so a healthy connection never gets there.
    idle_timeout_ms: int = 120_000
    handshake_timeout_ms: int = 10_000
    # A closed connection whose last bytes the peer doesn't read is cut after this.
    linger_ms: int = 5_000
    # How exact time-outs are: one timer an endpoint looks at all requests this often.
    sweep_interval_ms: int = 100


@dataclass(frozen=True, slots=True)
class ServerLimits(ChannelLimits):
    """The limits of a server."""

    # File descriptors are what runs out first; a store needs some thousands of its own.
    connections_max: int = 10_000
    backlog_max: int = 1024


@dataclass(frozen=True, slots=True)
class ClientLimits(ChannelLimits):
    """The limits of a client."""

    connect_timeout_ms: int = 3_000


@dataclass(slots=True)
class Counters:
    """What happened on an endpoint since its start; for metrics and tests."""

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
        """Return all of them by name."""
        return asdict(self)
