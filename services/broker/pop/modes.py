"""Assignment of queues by the broker: 400 asks for it, 401 sets the mode of a group, 402 returns all modes.

The queues are those of all brokers, so the broker asks a name server for the route of the topic. It keeps a route for
5 s. If no name server answers, it uses an older route, or its own queues.

Concurrency: the loop's thread.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from gantry.model.group import MessageModel
from gantry.model.message import MessageQueue
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from gantry.remoting.aio import Channel, Handler
from gantry.remoting.bodies.fastjson import queue_bean
from gantry.remoting.bodies.pop import (
    MessageRequestMode,
    MessageRequestModes,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueueAssignment,
)
from gantry.remoting.bodies.route import TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BodyError
from gantry.remoting.headers import GetRouteInfoHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.pop.assignment import POP, PULL, STRATEGIES, assign, default_mode, may_be_set, readable_queues
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registration import Registration
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.documents import config_path
from services.broker.registry.persistence import Persistence
from services.broker.registry.topics import TopicTable

MODES_FILE: Final = "messageRequestMode.json"
MODES_MAX: Final = 100_000
"""Limit of modes. RocketMQ has none, and any client may set some."""
ROUTE_AGE_MS: Final = 5_000
_ROUTES_MAX: Final = 10_000
_SHARE_MIN, _SHARE_MAX = -1, 10_000


class Routes:
    """The readable queues of topics on all brokers."""

    def __init__(self, registration: Registration, topics: TopicTable, broker_name: str, clock: Clock) -> None:
        self._registration = registration
        self._topics = topics
        self._broker_name = broker_name
        self._clock = clock
        self._known: OrderedDict[str, tuple[int, list[MessageQueue]]] = OrderedDict()

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic, sorted; None for an unknown topic."""
        known = self._known.get(topic)
        if known is not None and self._clock.monotonic_ms() - known[0] < ROUTE_AGE_MS:
            return known[1]
        queues = await self._ask(topic)
        if queues is None:
            return self._own(topic) if known is None else known[1]
        self._known[topic] = self._clock.monotonic_ms(), queues
        self._known.move_to_end(topic)
        if len(self._known) > _ROUTES_MAX:
            self._known.popitem(last=False)
        return queues

    async def _ask(self, topic: str) -> list[MessageQueue] | None:
        header = GetRouteInfoHeader(topic=topic, accept_standard_json_only=True)
        reply = await self._registration.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return None
        try:
            return readable_queues(topic, TopicRouteData.decode(reply.body_bytes).route)
        except BodyError:
            return None

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.find(topic)
        if config is None:
            return None
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(config.read_queue_nums)]


class ModeProcessor:
    """Answers requests about modes and assignments."""

    def __init__(
        self,
        *,
        file: ConfigFile,
        routes: Routes,
        consumers: ConsumerTable,
        persistence: Persistence,
    ) -> None:
        """Read the file. Raises StartupError."""
        self._routes = routes
        self._consumers = consumers
        self._persistence = persistence
        self._modes = (file.read(MessageRequestModes) or MessageRequestModes()).message_request_mode_map
        persistence.add(MODES_FILE, file, ConfigText({"messageRequestModeMap": lambda: self._modes}))

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.QUERY_ASSIGNMENT: self.query,
                code.SET_MESSAGE_REQUEST_MODE: self.set,
                code.GET_ALL_MESSAGE_REQUEST_MODE: self.get_all,
            }
        )

    async def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """400: return the queues of a client. An answer without queues means that the client keeps those it has."""
        asked = QueryAssignmentRequest.decode(request.body_bytes)
        queues = await self._routes.queues(asked.topic)
        info = self._consumers.find(asked.consumer_group)
        allocate = STRATEGIES.get(asked.strategy_name or "")
        mode = self._modes.get(asked.topic, {}).get(asked.consumer_group)
        mode = mode or default_mode(asked.topic, asked.consumer_group)
        response = QueryAssignmentResponse()
        if queues is not None and asked.message_model == MessageModel.BROADCASTING:
            response.message_queue_assignments = _assignments(queues, mode.mode)
        elif queues is not None and info is not None and allocate is not None:
            assigned = assign(mode, asked.client_id, queues, info.sharing_ids(channel), allocate)
            response.message_queue_assignments = _assignments(assigned, mode.mode)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=response.encode())

    async def set(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """401: set the mode of a group for a topic. Raises NotSavedError."""
        mode = MessageRequestMode.decode(request.body_bytes)
        check_topic(mode.topic, length_max=RETRY_TOPIC_LENGTH_MAX)
        check_group(mode.consumer_group, field="consumerGroup")
        if not may_be_set(mode.topic):
            raise RefusalError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if mode.mode not in {PULL, POP}:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"mode={mode.mode[:64]}: is neither PULL nor POP")
        if not _SHARE_MIN <= mode.pop_share_queue_num <= _SHARE_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"popShareQueueNum={mode.pop_share_queue_num}: is not within {_SHARE_MIN} and {_SHARE_MAX}",
            )
        groups = self._modes.get(mode.topic, {})
        if mode.consumer_group not in groups and sum(map(len, self._modes.values())) >= MODES_MAX:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"{MODES_MAX} modes are set, which is the limit")
        self._modes[mode.topic] = {**groups, mode.consumer_group: mode}
        self._persistence.mark(MODES_FILE)
        await self._persistence.durable(MODES_FILE)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def get_all(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """402: return all modes."""
        body = MessageRequestModes(message_request_mode_map=self._modes).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)


def _assignments(queues: list[MessageQueue], mode: str) -> list[QueueAssignment]:
    return [QueueAssignment(message_queue=queue_bean(queue), mode=mode) for queue in queues]


def build(broker: Broker) -> ModeProcessor:
    """Build the processor from the broker's parts. Raises StartupError."""
    return ModeProcessor(
        file=ConfigFile(broker.store.files, config_path(broker.settings.store_path_root_dir, MODES_FILE)),
        routes=Routes(broker.registration, broker.tables.topics, broker.identity.name, broker.clock),
        consumers=broker.tables.consumers,
        persistence=broker.persistence,
    )
