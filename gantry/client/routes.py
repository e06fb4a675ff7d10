"""Routes: loads routes from the name servers on first use, refreshes them while in use, and keeps them on failure.

If several callers want the same topic, one request serves all of them (single-flight). The routes in use are refreshed
every 30 s. A route that can't be refreshed stays in use, because brokers go on serving while all name servers are away.
A topic has no route only when the name servers say so.

Concurrency: the event loop's thread. If a caller is cancelled, its request goes on for the other callers.
"""

import asyncio
from collections.abc import Callable

from gantry.client.answers import read_body
from gantry.client.errors import (
    BrokerError,
    ClientError,
    InvalidArgumentError,
    NoAnswerError,
    NoRouteError,
    NotStartedError,
)
from gantry.client.nameservers import NameServers
from gantry.client.routecache import RouteCache, TopicEntry
from gantry.model.errors import InvalidNameError
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_topic
from gantry.model.route import TopicRoute
from gantry.remoting.bodies.route import ClusterInfo, TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.namesrv import GetRouteInfoHeader
from gantry.runtime.clock import Clock
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger

log = logger("client.routes")

# A route older than this many refresh intervals was not used in the meantime. It is refreshed before its next use.
_STALE_INTERVALS = 2
# The background task no longer refreshes topics that nobody has used for this many intervals.
_IDLE_INTERVALS = 20
# Cluster info that does not name the missing broker set is used again for this long (ms), because a lost set is missing
# from the routes of many topics at once.
_CLUSTER_INFO_MS = 5_000


class Routes:
    """The routes of an engine."""

    def __init__(
        self,
        name_servers: NameServers,
        tasks: TaskSet,
        *,
        clock: Clock,
        interval_ms: int,
        topics_max: int,
        on_brokers_changed: Callable[[], None],
    ) -> None:
        """Make the routes; `on_brokers_changed` is called when a new route changes the known broker sets."""
        self.cache = RouteCache(topics_max)
        self._name_servers = name_servers
        self._tasks = tasks
        self._clock = clock
        self._interval_ms = interval_ms
        self._on_brokers_changed = on_brokers_changed
        self._loading: dict[str, asyncio.Task[TopicEntry | ClientError]] = {}
        # Time of the request (monotonic ms) and its answer.
        self._cluster: tuple[int, ClusterInfo] | None = None

    def cached(self, topic: str) -> TopicEntry | None:
        """Return the entry of a topic if it is known and not stale. Ask no server: this is on the hot path of sending."""
        entry = self.cache.find(topic)
        if entry is None:
            return None
        entry.used_at_ms = now_ms = self._clock.monotonic_ms()
        return None if now_ms - entry.refreshed_at_ms > _STALE_INTERVALS * self._interval_ms else entry

    async def get(self, topic: str, *, refresh: bool = False) -> TopicEntry:
        """Return the entry of a topic; ask a name server if necessary.

        Args:
            topic: Name of the topic.
            refresh: Whether to ask a name server even if the route is known, and to fail if none answers.

        Raises:
            InvalidArgumentError: The name is not a valid topic name.
            NoRouteError: No name server knows the topic.
            BrokerError, NoAnswerError: No name server gave an answer, and the route is not known.
        """
        entry = self.cached(topic)
        if entry is not None and not refresh:
            return entry
        old = self.cache.find(topic)
        if old is None:
            try:
                check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX)
            except InvalidNameError as error:
                raise InvalidArgumentError(error.field, error.value, error.reason) from None
        try:
            return await self._load(topic)
        except ClientError:
            if old is None or refresh:
                raise
            return old

    async def cluster_info(self) -> ClusterInfo:
        """Return all registered broker sets. Raises BrokerError, NoAnswerError."""
        asked_ms = self._clock.monotonic_ms()
        response = await self._name_servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        cluster = read_body(ClusterInfo.decode, response, self._name_servers.current)
        self._cluster = (asked_ms, cluster)
        return cluster

    async def keep(self) -> None:
        """Refresh the routes in use, forever."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            used_since_ms = self._clock.monotonic_ms() - _IDLE_INTERVALS * self._interval_ms
            for topic in self.cache.topics_used_since(used_since_ms):
                try:
                    await self._load(topic)
                except NoAnswerError as error:
                    log.warning("no name server answers; routes stay as they are", error=str(error))
                    break
                except ClientError as error:
                    log.info("route not refreshed", topic=topic, error=str(error))
            self.cache.prune_brokers()

    async def _load(self, topic: str) -> TopicEntry:
        task = self._loading.get(topic)
        if task is None:
            task = self._loading[topic] = self._tasks.spawn(self._load_once(topic))
        await asyncio.wait({task})
        if task.cancelled():
            raise NotStartedError("the client engine was stopped")
        result = task.result()
        if isinstance(result, ClientError):
            raise result.with_traceback(None)
        return result

    async def _load_once(self, topic: str) -> TopicEntry | ClientError:
        try:
            route = await self._request_route(topic)
            known = dict(self.cache.brokers)
            gone = await self._without_topic(self.cache.missing_sets(topic, route), self._clock.monotonic_ms())
            entry = self.cache.update(topic, route, gone=gone, now_ms=self._clock.monotonic_ms())
        except ClientError as error:
            return error
        finally:
            del self._loading[topic]
        if self.cache.brokers != known:
            self._on_brokers_changed()
        return entry

    async def _request_route(self, topic: str) -> TopicRoute:
        header = GetRouteInfoHeader(topic=topic, accept_standard_json_only=True)
        try:
            response = await self._name_servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRouteError(topic) from None
            raise
        route = read_body(TopicRouteData.decode, response, self._name_servers.current).route
        if not route.queue_datas:
            raise NoRouteError(topic)
        return route

    async def _without_topic(self, missing: set[str], answered_ms: int) -> set[str]:
        """Return the missing sets that are registered with a master, and so certainly no longer hold the topic.

        Only cluster info that was requested after the route's answer proves this. If the info is older, the set may
        have died in between. Cluster info that does not name the set may be a few seconds old. The set then stays
        remembered.
        """
        if not missing:
            return set()
        cluster = self._cluster
        if (
            cluster is None
            or self._clock.monotonic_ms() - cluster[0] > _CLUSTER_INFO_MS
            or (cluster[0] < answered_ms and not missing.isdisjoint(cluster[1].broker_addr_table))
        ):
            try:
                registered = (await self.cluster_info()).broker_addr_table
            except ClientError:
                return set()
        else:
            registered = cluster[1].broker_addr_table
        return {name for name in missing if name in registered and registered[name].master_address is not None}
