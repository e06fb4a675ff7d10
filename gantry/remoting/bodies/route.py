"""Routes and clusters: the bodies of 105, 106, 217 and 901."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from gantry.model.route import BrokerData, TopicRoute
from gantry.remoting.bodies.beans import UNSET, BrokerDataBean, QueueDataBean, Unset, written_broker_data
from gantry.remoting.bodies.fastjson import JsonBody, encode_json, integer_keys


class _ReadRoute(JsonBody, kw_only=True):
    broker_datas: list[BrokerDataBean] | None = None
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None
    queue_datas: list[QueueDataBean] | None = None


class _WrittenRoute(JsonBody, kw_only=True):
    broker_datas: list[JsonBody]
    filter_server_table: dict[str, list[str]]
    order_topic_conf: str | Unset
    queue_datas: list[QueueDataBean]


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """A TopicRoute as a body: of the response to 105, and of the request 217."""

    route: TopicRoute

    def encode(self, *, standard_json: bool = True) -> bytes:
        """Return the encoded body. It has no blanks, because the Go client splits it at commas and colons.

        Args:
            standard_json: Whether broker ids have quotes. Java clients from 4.9.4 on and clients in all other
                languages can read them. Use False for clients that announce a version below 401 and do not send
                acceptStandardJsonOnly.
        """
        route = self.route
        return encode_json(
            _WrittenRoute(
                broker_datas=[written_broker_data(data, standard_json=standard_json) for data in route.broker_datas],
                filter_server_table={key: list(value) for key, value in route.filter_server_table.items()},
                order_topic_conf=UNSET if route.order_topic_conf is None else route.order_topic_conf,
                queue_datas=[QueueDataBean.of(data) for data in route.queue_datas],
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body, with or without quotes around the broker ids.

        Raises:
            BodyError: The data is not a route.
        """
        read = _ReadRoute.decode(data)
        return cls(
            TopicRoute(
                queue_datas=tuple(bean.to_model() for bean in read.queue_datas or ()),
                broker_datas=tuple(bean.to_model() for bean in read.broker_datas or ()),
                order_topic_conf=read.order_topic_conf,
                filter_server_table={key: tuple(value) for key, value in (read.filter_server_table or {}).items()},
            )
        )


class _ReadClusterInfo(JsonBody, kw_only=True):
    broker_addr_table: dict[str, BrokerDataBean] | None = None
    cluster_addr_table: dict[str, list[str]] | None = None


class _WrittenClusterInfo(JsonBody, kw_only=True):
    broker_addr_table: dict[str, JsonBody]
    cluster_addr_table: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers by name, and the broker names of each cluster: the response to 106."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the encoded body. In this body, broker ids never have quotes."""
        return encode_json(
            _WrittenClusterInfo(
                broker_addr_table={
                    name: written_broker_data(data, standard_json=False)
                    for name, data in self.broker_addr_table.items()
                },
                cluster_addr_table={name: list(brokers) for name, brokers in self.cluster_addr_table.items()},
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not the description of clusters.
        """
        read = _ReadClusterInfo.decode(data)
        return cls(
            broker_addr_table={name: bean.to_model() for name, bean in (read.broker_addr_table or {}).items()},
            cluster_addr_table={name: tuple(names) for name, names in (read.cluster_addr_table or {}).items()},
        )


class _WrittenMembers(JsonBody, kw_only=True):
    broker_addrs: object
    broker_name: str
    cluster: str


class _ReadMemberGroup(JsonBody, kw_only=True):
    broker_member_group: BrokerDataBean | None = None


class _WrittenMemberGroup(JsonBody, kw_only=True):
    broker_member_group: _WrittenMembers


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The members of one broker set: the response to 901."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the encoded body."""
        members = _WrittenMembers(
            broker_addrs=integer_keys(self.broker_addrs), broker_name=self.broker_name, cluster=self.cluster
        )
        return encode_json(_WrittenMemberGroup(broker_member_group=members))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not the description of a broker set.
        """
        members = _ReadMemberGroup.decode(data).broker_member_group
        if members is None:
            return cls(cluster="", broker_name="")
        return cls(members.cluster or "", members.broker_name, members.broker_addrs or {})
