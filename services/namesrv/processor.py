"""The request handlers: one function for each request code reads the header, uses the tables, and returns the reply.

A handler raises NamesrvError if it must refuse a request. The reply then has the code and the text of the error, and
the connection stays open. The reply to a request that writes a file goes out when the file is durable.

Source: RocketMQ 5.3 DefaultRequestProcessor and ClientRequestProcessor.

Concurrency: the event loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from gantry.remoting.aio import Channel, Handler
from gantry.remoting.bodies import (
    BrokerMemberGroup,
    ClusterInfo,
    KVTable,
    TopicList,
    TopicRouteData,
    decode_data_version,
    decode_properties_text,
    encode_data_version,
    encode_properties_text,
)
from gantry.remoting.codes import VERSION_STANDARD_JSON_ROUTE, RequestCode, ResponseCode
from gantry.remoting.command import EncodableHeader, RemotingCommand
from gantry.remoting.headers import kv as kv_headers
from gantry.remoting.headers import namesrv as headers
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.namesrv.errors import DisabledError, NamesrvError, NotReadyError, RefusedError
from services.namesrv.kvconfig import ORDER_TOPIC_CONFIG, KvConfig
from services.namesrv.liveness import BrokerKey
from services.namesrv.registration import check_queues, read_registration
from services.namesrv.routetable import LowestIdChange, Removal, RouteTable
from services.namesrv.routeviews import (
    UNIT,
    UNIT_SUB,
    find_route,
    member_addresses,
    system_topics,
    topics_of_cluster,
    topics_with_flags,
    within_zone,
)
from services.namesrv.settings import NamesrvSettings, to_properties

log = logger("namesrv")

Request = RemotingCommand
Response = RemotingCommand
Notify = Callable[[str, RemotingCommand], None]
"""Function that sends a one-way request to a broker's address, without waiting."""
Save = Callable[[bytes], Awaitable[None]]
"""Function that writes a file and returns when it is durable."""


class Processor:
    """Answers requests from the tables."""

    def __init__(
        self,
        settings: NamesrvSettings,
        table: RouteTable,
        kv: KvConfig,
        *,
        clock: Clock,
        notify: Notify,
        save_changes: Save,
        changes: dict[str, str] | None = None,
    ) -> None:
        """Create the handlers. `changes` are the changes by earlier requests; `settings` already contains them."""
        self.settings = settings
        self.table = table
        self.counts: Counter[tuple[int, int]] = Counter()
        """(request code, response code) → number of requests."""
        self.expired_count = 0
        self._kv = kv
        self._clock = clock
        self._notify = notify
        self._save_changes = save_changes
        self._changes = dict(changes or {})
        self._changing = asyncio.Lock()
        self._started_ms = clock.monotonic_ms()

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each request code, for RemotingServer."""
        immediate: dict[int, Callable[[Channel, Request], Response]] = {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_sub_ununit_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list_kv,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }
        written: dict[int, Callable[[Channel, Request], Awaitable[Response]]] = {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
        }
        return {
            **{code: self._guard(handler) for code, handler in immediate.items()},
            **{code: self._guard_written(handler) for code, handler in written.items()},
        }

    # Brokers

    def register_broker(self, channel: Channel, request: Request) -> Response:
        """103: register a broker and its topics."""
        header = headers.RegisterBrokerHeader.from_ext(request.ext_fields)
        registration = read_registration(header, request.body_bytes, version=request.version)
        is_new = self.table.live.find(registration.key) is None
        result = self.table.register(
            registration,
            connection=channel,
            now_ms=self._clock.monotonic_ms(),
            delete_missing_topics=self.settings.delete_topic_with_broker_registration,
        )
        if result.is_stale:
            log.warning(
                "registration of an older incarnation of a broker ignored",
                broker=registration.broker_name,
                address=registration.key.address,
            )
        elif is_new:
            log.info(
                "broker registered",
                broker=registration.broker_name,
                id=registration.broker_id,
                cluster=registration.key.cluster,
                address=registration.key.address,
                topics=len(registration.topics),
            )
        self._notify_members(result.change)
        body = None
        if self.settings.return_order_topic_config_to_broker and (table := self._kv.find_namespace(ORDER_TOPIC_CONFIG)):
            body = KVTable(table=dict(table)).encode()
        return _success(
            request,
            headers.RegisterBrokerResponseHeader(
                ha_server_addr=result.master_ha_address, master_addr=result.master_address
            ),
            body=body,
        )

    def unregister_broker(self, channel: Channel, request: Request) -> Response:
        """104: unregister a broker that stops."""
        header = headers.UnregisterBrokerHeader.from_ext(request.ext_fields)
        self._removed(
            self.table.unregister(BrokerKey(header.cluster_name, header.broker_addr), header.broker_name),
            "it unregistered",
        )
        return _success(request)

    def heartbeat(self, channel: Channel, request: Request) -> Response:
        """904: record a broker's sign of life. An unknown broker stays unknown, because its topics are unknown too."""
        header = headers.BrokerHeartbeatHeader.from_ext(request.ext_fields)
        self.table.live.touch(BrokerKey(header.cluster_name, header.broker_addr), self._clock.monotonic_ms())
        return _success(request)

    def query_data_version(self, channel: Channel, request: Request) -> Response:
        """322: return whether a broker's registration has changed. If not, the request is also a sign of life."""
        header = headers.QueryDataVersionHeader.from_ext(request.ext_fields)
        key = BrokerKey(header.cluster_name, header.broker_addr)
        version = decode_data_version(request.body_bytes)
        known = self.table.live.find(key)
        is_current = self.table.live.is_version_current(key, version)
        if is_current:
            self.table.live.touch(key, self._clock.monotonic_ms())
        return _success(
            request,
            headers.QueryDataVersionResponseHeader(changed=not is_current),
            body=None if known is None else encode_data_version(known.data_version),
        )

    def member_group(self, channel: Channel, request: Request) -> Response:
        """901: return the members of a broker set."""
        header = headers.GetBrokerMemberGroupHeader.from_ext(request.ext_fields)
        addresses = member_addresses(self.table, header.cluster_name, header.broker_name)
        return _success(request, body=BrokerMemberGroup(header.cluster_name, header.broker_name, addresses).encode())

    def wipe_write_perm(self, channel: Channel, request: Request) -> Response:
        """205: remove the write permission from all queues of a broker set."""
        header = headers.WipeWritePermHeader.from_ext(request.ext_fields)
        count = self.table.wipe_write_perm(header.broker_name)
        log.info("write permission removed", broker=header.broker_name, topics=count)
        return _success(request, headers.WipeWritePermResponseHeader(wipe_topic_count=count))

    def add_write_perm(self, channel: Channel, request: Request) -> Response:
        """327: undo 205: give all queues of a broker set read and write permission."""
        header = headers.AddWritePermHeader.from_ext(request.ext_fields)
        count = self.table.add_write_perm(header.broker_name)
        log.info("write permission restored", broker=header.broker_name, topics=count)
        return _success(request, headers.AddWritePermResponseHeader(add_topic_count=count))

    # Routes and lists

    def route(self, channel: Channel, request: Request) -> Response:
        """105: return the route of a topic."""
        header = headers.GetRouteInfoHeader.from_ext(request.ext_fields)
        settings = self.settings
        if settings.need_wait_for_service:
            left_ms = self._started_ms + settings.wait_seconds_for_service * 1000 - self._clock.monotonic_ms()
            if left_ms > 0:
                raise NotReadyError(f"name server not ready: it waits for brokers for {left_ms} ms more")
        found = find_route(self.table, header.topic, support_acting_master=settings.support_acting_master)
        if header.zone_mode and header.zone_name:
            found = within_zone(found, header.zone_name)
        if settings.order_message_enable:
            found = replace(found, order_topic_conf=self._kv.find(ORDER_TOPIC_CONFIG, header.topic))
        reads_standard = request.version >= VERSION_STANDARD_JSON_ROUTE or bool(header.accept_standard_json_only)
        return _success(request, body=TopicRouteData(found).encode(standard_json=reads_standard))

    def cluster_info(self, channel: Channel, request: Request) -> Response:
        """106: return all broker sets and clusters."""
        clusters = {name: tuple(sorted(members)) for name, members in self.table.clusters.items()}
        return _success(request, body=ClusterInfo(self.table.brokers, clusters).encode())

    def all_topics(self, channel: Channel, request: Request) -> Response:
        """206: return all topics."""
        if not self.settings.enable_all_topic_list:
            raise DisabledError("disable")
        return _success(request, body=TopicList(topic_list=sorted(self.table.topics)).encode())

    def topics_by_cluster(self, channel: Channel, request: Request) -> Response:
        """224: return the topics that have a queue in a cluster."""
        header = headers.GetTopicsByClusterHeader.from_ext(request.ext_fields)
        return self._topic_list(request, topics_of_cluster(self.table, header.cluster))

    def system_topics(self, channel: Channel, request: Request) -> Response:
        """304: return the names of clusters and broker sets, which are names of topics too."""
        names, address = system_topics(self.table)
        return _success(request, body=TopicList(topic_list=names, broker_addr=address).encode())

    def unit_topics(self, channel: Channel, request: Request) -> Response:
        """311: return the topics of units."""
        return self._topic_list(request, topics_with_flags(self.table, have=UNIT))

    def unit_sub_topics(self, channel: Channel, request: Request) -> Response:
        """312: return the topics with subscriptions of units."""
        return self._topic_list(request, topics_with_flags(self.table, have=UNIT_SUB))

    def unit_sub_ununit_topics(self, channel: Channel, request: Request) -> Response:
        """313: return the topics that have subscriptions of units but belong to no unit."""
        return self._topic_list(request, topics_with_flags(self.table, have=UNIT_SUB, lack=UNIT))

    def delete_topic(self, channel: Channel, request: Request) -> Response:
        """216: remove a topic, from one cluster or from all."""
        header = headers.DeleteTopicInNamesrvHeader.from_ext(request.ext_fields)
        self.table.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic deleted", topic=header.topic, cluster=header.cluster_name)
        return _success(request)

    def register_topic(self, channel: Channel, request: Request) -> Response:
        """217: add a topic's queues on known broker sets. Queues on other sets are ignored."""
        header = headers.RegisterTopicHeader.from_ext(request.ext_fields)
        queues = TopicRouteData.decode(request.body_bytes).route.queue_datas
        for queue in queues:
            check_queues(header.topic, queue)
        self.table.register_topic(header.topic, queues)
        return _success(request)

    # Key-values and settings

    def get_kv(self, channel: Channel, request: Request) -> Response:
        """101: return one value."""
        header = kv_headers.GetKvConfigHeader.from_ext(request.ext_fields)
        value = self._kv.get(header.namespace, header.key)
        return _success(request, kv_headers.GetKvConfigResponseHeader(value=value))

    def list_kv(self, channel: Channel, request: Request) -> Response:
        """219: return all items of a namespace."""
        header = kv_headers.GetKvListHeader.from_ext(request.ext_fields)
        return _success(request, body=KVTable(table=dict(self._kv.get_namespace(header.namespace))).encode())

    async def put_kv(self, channel: Channel, request: Request) -> Response:
        """100: set a value."""
        header = kv_headers.PutKvConfigHeader.from_ext(request.ext_fields)
        await self._kv.put(header.namespace, header.key, header.value)
        return _success(request)

    async def delete_kv(self, channel: Channel, request: Request) -> Response:
        """102: remove a value."""
        header = kv_headers.DeleteKvConfigHeader.from_ext(request.ext_fields)
        await self._kv.delete(header.namespace, header.key)
        return _success(request)

    def get_config(self, channel: Channel, request: Request) -> Response:
        """319: return the settings of the name server."""
        return _success(request, body=encode_properties_text(dict(to_properties(self.settings))))

    async def update_config(self, channel: Channel, request: Request) -> Response:
        """318: change settings, and keep the changes for the next start."""
        properties = decode_properties_text(request.body_bytes)
        async with self._changing:
            settings, taken = self.settings.changed(properties)
            if taken:
                changes = {**self._changes, **taken}
                await self._save_changes(msgspec.json.encode(changes))
                self.settings, self._changes = settings, changes
                log.info("settings changed", **taken)
        return _success(request)

    # Events of the loop and of the server

    def expire(self) -> None:
        """Remove the brokers that have been silent for too long, and close their connections."""
        for broker, removal in self.table.expire(self._clock.monotonic_ms()):
            self.expired_count += 1
            self._removed(removal, f"no heartbeat for more than {broker.timeout_ms} ms")
            broker.connection.close("its broker was silent for too long")

    def connection_closed(self, channel: Channel) -> None:
        """Remove the brokers that registered over a connection that is closed now."""
        for removal in self.table.connection_closed(channel):
            self._removed(removal, f"connection: {channel.close_reason}")

    # Internal functions

    def _guard(self, handler: Callable[[Channel, Request], Response]) -> Handler:
        def handle(channel: Channel, request: Request) -> Response:
            try:
                response = handler(channel, request)
            except NamesrvError as error:
                response = _refusal(request, error)
            self.counts[request.code, response.code] += 1
            return response

        return handle

    def _guard_written(self, handler: Callable[[Channel, Request], Awaitable[Response]]) -> Handler:
        async def handle(channel: Channel, request: Request) -> Response:
            try:
                response = await handler(channel, request)
            except NamesrvError as error:
                response = _refusal(request, error)
            except OSError as error:
                log.warning("file not written", code=request.code, error=str(error))
                response = _refusal(request, RefusedError(f"nothing was changed, the file can't be written: {error}"))
            self.counts[request.code, response.code] += 1
            return response

        return handle

    def _topic_list(self, request: Request, topics: list[str]) -> Response:
        if not self.settings.enable_topic_list:
            raise DisabledError("disable")
        return _success(request, body=TopicList(topic_list=topics).encode())

    def _removed(self, removal: Removal, reason: str) -> None:
        if removal.was_known:
            log.info("broker gone", broker=removal.broker_name, address=removal.key.address, reason=reason)
        self._notify_members(removal.change)

    def _notify_members(self, change: LowestIdChange | None) -> None:
        if change is None or not self.settings.notify_min_broker_id_changed:
            return
        ext = {
            "minBrokerId": str(change.lowest_id),
            "brokerName": change.broker_name,
            "minBrokerAddr": change.lowest_address,
        }
        if change.offline_address is not None:
            ext["offlineBrokerAddr"] = change.offline_address
        if change.ha_address is not None:
            ext["haBrokerAddr"] = change.ha_address
        for address in change.notify:
            command = RemotingCommand.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext=dict(ext), one_way=True)
            self._notify(address, command)


def _success(request: Request, header: EncodableHeader | None = None, *, body: bytes | None = None) -> Response:
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, header, body=body)


def _refusal(request: Request, error: NamesrvError) -> Response:
    return RemotingCommand.response_to(request, error.code, remark=str(error))
