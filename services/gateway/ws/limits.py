"""The limits of a stream: `welcome` reports them; openapi/websocket.md describes what happens beyond each."""

from dataclasses import asdict, dataclass

MIB = 1024 * 1024

# Interval at which the WebSocket layer pings the peer. The server that runs the application is started with it.
PING_MS = 20_000


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The resources that one connection may use."""

    frame_bytes_max: int = 8 * MIB
    message_bytes_max: int = 4 * MIB
    publish_messages_max: int = 1_000
    publishes_pending_max: int = 256
    # Frames of publishes stay in memory until they are answered. Above this limit no further frame is read.
    publishes_pending_bytes_max: int = 16 * MIB
    # Answers that are pending, or written and not taken; a result has about 200 bytes and counts 512 until it exists.
    # Four publishes of a thousand messages keep a broker busy.
    publish_answers_bytes_max: int = 2 * MIB
    subscriptions_max: int = 32
    batch_max: int = 1_000
    # JSON of 10,000 small messages takes about 60 ms of the loop, in pieces.
    tail_rate_max: int = 10_000
    credit_messages_max: int = 100_000
    credit_bytes_max: int = 256 * MIB
    receipts_max: int = 10_000
    # An error for each of ten thousand rejected receipts would block the loop for 0.1 s and fill the outbox with
    # megabytes.
    receipt_errors_max: int = 100
    refused_frames_max: int = 100
    # 8 MiB at 140 kB/s, as for a body; the time in which the key has no room for more counts, too.
    message_timeout_ms: int = 60_000
    # Pings, pongs and fragments of less than 128 bytes. Two hundred take a millisecond of the loop.
    small_frames_per_s_max: int = 200
    slow_consumer_ms: int = 30_000
    commit_ms: int = 1_000

    def as_frame(self) -> dict[str, int]:
        """Return the limits as `welcome` shows them."""
        return asdict(self)


DEFAULT_CREDIT_MESSAGES = 2_000
DEFAULT_CREDIT_BYTES = 16 * MIB
DEFAULT_BATCH = 32
DEFAULT_TAIL_RATE = 1_000
