"""The broker's settings, from a TOML file: RocketMQ's names in snake_case (`brokerIP1` is `broker_ip1`).

`StoreSettings` declares the settings of the store, and `BrokerSettings` inherits them. Defaults are RocketMQ's, unless
a comment gives the reason for another one. Changes by request 25 are kept in the store's config/gantry-settings.json.
At the next start they override the file and the environment. The command line overrides everything. A change to one of
LIVE_KEYS also takes effect at once (`LiveSettings`).

RocketMQ has a thread pool and a request queue for each family of requests. This broker has one event loop, which
handles a request in the turn that reads it. So RocketMQ's words have these meanings in the settings:

- *send queue*: appended messages that wait for the disk (SYNC_FLUSH); its capacity is
  `send_thread_pool_queue_capacity`.
- *pull queue*: held pulls; its capacity is `pull_thread_pool_queue_capacity`.
- *waiting time*: the standing lag of the loop (`overload.LoopLag`). Every request has waited about that long in its
  socket before the loop read it.
"""

import dataclasses
import enum
import re
from dataclasses import dataclass
from typing import Final

from gantry.model.errors import InvalidNameError
from gantry.model.names import check_topic
from gantry.remoting.aio.tls import ClientAuth, TlsMode, TlsSettings, tls_settings
from gantry.runtime.digits import parse_digits
from gantry.runtime.metrics import choose_metrics_port
from gantry.storeformat.timerfiles import TIMER_LOG_FILE_BYTES
from services.broker.store.settings import StoreSettings

PORT_MAX = 65_535
# RocketMQ's settings have Java's type int, except these, which are long.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_INT64 = frozenset({"start_accept_send_request_time_stamp"})
TEXT_LENGTH_MAX = 4096
"""Largest number of characters of a text: more than a path or a list of name servers needs."""
FAST_PORT_OFF = "off"
TIMER_LOG_FILE_BYTES_MIN = 4096


class BrokerRole(enum.StrEnum):
    """The role of the broker in its set. Only a master is implemented."""

    ASYNC_MASTER = "ASYNC_MASTER"


@dataclass(frozen=True, slots=True)
class BrokerSettings(StoreSettings):
    """All settings of one broker."""

    # Names and addresses
    namesrv_addr: str = ""
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    broker_ip1: str = ""  # The address that other processes are told; empty: bind_address.
    bind_address: str = "127.0.0.1"  # RocketMQ: 0.0.0.0. Safe by default, ADR-0008.
    listen_port: int = 10_911
    fast_listen_port: str = ""  # A port, or "off"; empty: listen_port - 2.
    ha_listen_port: int = 0  # 0: listen_port + 1.
    metrics_port: str = "auto"  # A port, 0 for any free one, or "off"; "auto": listen_port + 7.
    metrics_host: str = "127.0.0.1"
    broker_permission: int = 6
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    start_accept_send_request_time_stamp: int = 0  # ms since 1970
    config_black_list: str = "configBlackList;brokerConfigPath"

    # Topics and groups
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"

    # Duplicate windows
    duplicate_window_keys_max: int = 1_000_000  # For each topic: about 57 MiB.
    duplicate_window_keys_total_max: int = 4_000_000

    # Transactions
    reject_transaction_message: bool = False
    transaction_time_out: int = 6000  # ms
    transaction_check_max: int = 15
    transaction_check_interval: int = 30_000  # ms
    transaction_op_msg_max_size: int = 4096  # bytes
    transaction_op_batch_interval: int = 3000  # ms

    # Name servers
    register_name_server_period: int = 30_000  # ms
    register_broker_timeout_mills: int = 24_000  # ms

    # Clients
    flush_consumer_offset_interval: int = 5000  # ms
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000  # ms
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: int = 120_000  # ms
    default_query_max_num: int = 32
    store_reply_message_enable: bool = True
    enable_property_filter: bool = True  # SQL92 filters. RocketMQ: off, ADR-0034.
    flush_delay_offset_interval: int = 10_000  # ms

    # Durability; a send that waits longer for the disk gets FLUSH_DISK_TIMEOUT.
    sync_flush_timeout: int = 5000  # ms

    # Fast failure
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: int = 200  # ms
    wait_time_mills_in_pull_queue: int = 5000  # ms
    send_thread_pool_queue_capacity: int = 10_000
    pull_thread_pool_queue_capacity: int = 100_000
    os_page_cache_busy_time_out_mills: int = 1000  # ms

    # Connections
    server_channel_max_idle_time_seconds: int = 120
    server_connections_max: int = 10_000  # Not RocketMQ's. File descriptors run out before anything else.
    tls_server_mode: TlsMode = TlsMode.PERMISSIVE  # Has an effect only with a certificate.
    tls_server_cert_path: str | None = None
    tls_server_key_path: str | None = None
    tls_server_trust_cert_path: str | None = None
    tls_server_need_client_auth: ClientAuth = ClientAuth.NONE
    drain_timeout_ms: int = 3_000

    # Messages for a set time
    timer_wheel_enable: bool = True  # If not, messages that wait stay where they are.
    timer_max_delay_sec: int = 40 * 86_400  # RocketMQ: 3 days.
    timer_roll_window_slot: int = 2 * 86_400  # s
    timer_congest_num_each_slot: int = INT32_MAX
    timer_flush_interval_ms: int = 1000
    mapped_file_size_timer_log: int = TIMER_LOG_FILE_BYTES  # bytes
    recall_message_enable: bool = True  # RocketMQ: off.

    # Pop
    pop_from_retry_probability: int = 20  # Percentage of pops that look into the retry topics first.
    enable_retry_topic_v2: bool = False  # Whether new pop retry topics are named %RETRY%group+topic, not group_topic.

    def check(self) -> None:
        """Raise ValueError("name: reason") if a value can't work."""
        for name in ("broker_name", "broker_cluster_name", "msg_trace_topic_name"):
            try:
                # The names of cluster and broker are also names of topics, by which tools find the broker.
                check_topic(getattr(self, name), field=name)
            except InvalidNameError as error:
                raise ValueError(str(error)) from None
        if not _REGION.fullmatch(self.region_id):
            raise ValueError(f"region_id: {self.region_id!r} may hold letters, digits, '_', '-' and '.' only")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most = INT64_MAX if field.name in _INT64 else INT32_MAX
            if isinstance(value, int) and not 0 <= value <= most:
                raise ValueError(f"{field.name}: {_shown(value)} is not within 0 and {most}")
            if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
                raise ValueError(f"{field.name}: {value[:100]!r}… has more than {TEXT_LENGTH_MAX} characters")
        for name in ("listen_port", "ha_listen_port"):
            if not 0 <= getattr(self, name) <= PORT_MAX:
                raise ValueError(f"{name}: {getattr(self, name)} is not within 0 and {PORT_MAX}")
        if self.broker_id != 0:
            raise ValueError(f"broker_id: {self.broker_id}: only a master, whose id is 0, is supported yet")
        if not 0 <= self.broker_permission <= 7:
            raise ValueError(f"broker_permission: {self.broker_permission} is not within 0 and 7")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if self.ha_listen_port == 0 and self.listen_port == PORT_MAX:
            raise ValueError(f"ha_listen_port: {PORT_MAX} + 1 is no port; give one")
        for address in self.name_servers():
            check_address(address)
        choose_metrics_port(self.metrics_port, listen_port=self.listen_port)
        if self.mapped_file_size_timer_log < TIMER_LOG_FILE_BYTES_MIN:
            raise ValueError(
                f"mapped_file_size_timer_log: {self.mapped_file_size_timer_log} is less than {TIMER_LOG_FILE_BYTES_MIN}"
            )
        self.fast_port()
        self.tls()
        # `super()` without arguments fails in a dataclass with slots.
        StoreSettings.check(self)

    def fast_port(self) -> int | None:
        """Return the second port, for old clients and slaves; 0 for any free one, None for none. Raises ValueError."""
        text = self.fast_listen_port
        if text == FAST_PORT_OFF:
            return None
        if not text:
            # If the first port is any free one, no rule gives the second.
            return self.listen_port - 2 if self.listen_port > 2 else None
        port = parse_digits(text, PORT_MAX)
        if port is None:
            raise ValueError(f"fast_listen_port: {text!r} is neither a port nor {FAST_PORT_OFF}")
        return port

    def tls(self) -> TlsSettings | None:
        """Return the TLS settings, or None if TLS is disabled or there is no certificate. Raises ValueError."""
        return tls_settings(
            mode=self.tls_server_mode,
            cert_path=self.tls_server_cert_path,
            key_path=self.tls_server_key_path,
            trust_cert_path=self.tls_server_trust_cert_path,
            client_auth=self.tls_server_need_client_auth,
        )

    def name_servers(self) -> tuple[str, ...]:
        """Return the addresses of the name servers. They are separated by `;`, as in RocketMQ, or by `,`."""
        parts = self.namesrv_addr.replace(",", ";").split(";")
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


LIVE_KEYS: Final = frozenset(
    {
        "auto_create_topic_enable",
        "auto_create_subscription_group",
        "broker_permission",
        "default_topic_queue_nums",
        "start_accept_send_request_time_stamp",
        "max_message_size",
        "default_query_max_num",
        "message_delay_level",
        "long_polling_enable",
        "short_polling_time_mills",
        "notify_consumer_ids_changed_enable",
        "channel_expired_timeout",
        "sync_flush_timeout",
        "broker_fast_failure_enable",
        "wait_time_mills_in_send_queue",
        "wait_time_mills_in_pull_queue",
        "send_thread_pool_queue_capacity",
        "pull_thread_pool_queue_capacity",
        "os_page_cache_busy_time_out_mills",
        "store_reply_message_enable",
        "enable_property_filter",
        "reject_transaction_message",
        "transaction_time_out",
        "transaction_check_max",
        "transaction_check_interval",
        "transaction_op_msg_max_size",
        "transaction_op_batch_interval",
        "duplicate_window_keys_max",
        "duplicate_window_keys_total_max",
    }
)
"""Names of the settings that request 25 changes at once. All others take effect at the next start."""
assert {field.name for field in dataclasses.fields(BrokerSettings)} >= LIVE_KEYS


class LiveSettings:
    """The settings in force. Parts of the broker keep this object, and read `current` at every request.

    Attributes:
        current: Settings with which the broker was started, with the later changes to LIVE_KEYS.
    """

    __slots__ = ("current",)

    def __init__(self, current: BrokerSettings) -> None:
        self.current = current

    def follow(self, settings: BrokerSettings) -> None:
        """Take over the settings of LIVE_KEYS."""
        self.current = dataclasses.replace(self.current, **{name: getattr(settings, name) for name in LIVE_KEYS})


def check_address(address: str) -> None:
    """Raise ValueError if an address of a name server is not host:port."""
    host, _, digits = address.rpartition(":")
    if not host or not parse_digits(digits, PORT_MAX):
        raise ValueError(f"namesrv_addr: {address!r} is not host:port")


_REGION = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_POSITIVE = (
    "default_topic_queue_nums",
    "register_name_server_period",
    "register_broker_timeout_mills",
    "flush_consumer_offset_interval",
    "flush_delay_offset_interval",
    "short_polling_time_mills",
    "channel_expired_timeout",
    "default_query_max_num",
    "send_thread_pool_queue_capacity",
    "pull_thread_pool_queue_capacity",
    "server_channel_max_idle_time_seconds",
    "server_connections_max",
    "sync_flush_timeout",
    "transaction_check_max",
    "transaction_check_interval",
    "transaction_op_msg_max_size",
    "transaction_op_batch_interval",
    "timer_flush_interval_ms",
    "duplicate_window_keys_max",
    "duplicate_window_keys_total_max",
)


def _shown(value: int) -> str:
    return str(value) if abs(value) <= INT64_MAX else f"a number of {value.bit_length()} bits"
