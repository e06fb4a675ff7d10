"""The route of a topic: the brokers and queues that a name server returns for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The members of one broker set."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False

    @property
    def master_address(self) -> str | None:
        """The address `host:port` of the master, or None if there is no master."""
        return self.broker_addrs.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of a topic on one broker set."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """All broker sets that serve a topic."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
