"""Settings of the client engine: RocketMQ's defaults, under names with units."""

from dataclasses import dataclass, field

from gantry.client.errors import InvalidArgumentError
from gantry.model.compression import COMPRESS_OVER_BYTES, LEVEL, Compression
from gantry.model.names import BODY_BYTES_MAX
from gantry.remoting.aio.limits import ClientLimits
from gantry.remoting.aio.tls import ClientTlsSettings


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All settings of an engine and of its producers and consumers."""

    namesrv: tuple[str, ...]
    """Addresses `host:port` of the name servers. The client asks one at a time."""

    client_ip: str = "127.0.0.1"
    """Address in client ids and message ids. Brokers use the address from which a connection comes instead."""
    process_id: int = 0
    instance_name: str = ""
    """Name that distinguishes the clients of one address; empty for a name that no other client has."""

    namesrv_timeout_ms: int = 3_000
    poll_namesrv_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    heartbeat_timeout_ms: int = 3_000
    admin_timeout_ms: int = 5_000
    topics_max: int = 100_000
    """Largest number of topics whose routes are kept. The least recently used one is forgotten first."""

    send_timeout_ms: int = 3_000
    """Time-out of one send, over all its attempts."""
    send_attempts_max: int = 3
    latency_fault_enable: bool = False
    """Whether to prefer brokers that answer fast, and to avoid brokers that fail for a while."""
    body_bytes_max: int = BODY_BYTES_MAX
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    """Size from which bodies are compressed; 0 compresses none."""
    compress_in_thread_over_bytes: int = 65_536
    """Size from which bodies are compressed in a thread, because that would block the loop for milliseconds."""
    compression: Compression = Compression.ZLIB
    compression_level: int = LEVEL
    auto_create_topics: bool = False
    """Whether to send to unknown topics, so that the broker creates them from TBW102."""
    default_topic_queue_nums: int = 4

    rebalance_interval_ms: int = 20_000
    rebalance_interval_min_ms: int = 1_000
    offset_commit_interval_ms: int = 5_000

    limits: ClientLimits = field(default_factory=ClientLimits)
    tls: ClientTlsSettings | None = None

    def check(self) -> None:
        """Raise InvalidArgumentError for the first setting that is not valid."""
        if not self.namesrv:
            raise InvalidArgumentError("namesrv", self.namesrv, "names no name server")
        for name in (
            "namesrv_timeout_ms",
            "poll_namesrv_interval_ms",
            "heartbeat_interval_ms",
            "heartbeat_timeout_ms",
            "admin_timeout_ms",
            "topics_max",
            "send_timeout_ms",
            "send_attempts_max",
            "body_bytes_max",
            "default_topic_queue_nums",
            "rebalance_interval_ms",
            "rebalance_interval_min_ms",
            "offset_commit_interval_ms",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(name, getattr(self, name), "is not above 0")
