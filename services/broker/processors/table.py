"""The handlers of all request codes. The server itself replies with code 3 to any other request code.

A handler may raise RefusalError. It may also raise an error of the model for an invalid name or value, for which the
reply is 29, INVALID_PARAMETER. The channel replies to HeaderError and BodyError (1, SYSTEM_ERROR). The reply to a
change that can't be saved is 14, SERVICE_NOT_AVAILABLE.
"""

from collections.abc import Awaitable, Callable, Mapping

from gantry.model.errors import InvalidValueError
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.coldreader import ColdReader
from services.broker.processors.backlog import BacklogProcessor
from services.broker.processors.brokeradmin import BrokerAdminProcessor
from services.broker.processors.clients import ClientProcessor
from services.broker.processors.connections import ConnectionProcessor
from services.broker.processors.groupadmin import GroupAdminProcessor
from services.broker.processors.notbuilt import NOT_BUILT
from services.broker.processors.offset import OffsetProcessor
from services.broker.processors.pull import PullProcessor
from services.broker.processors.query import QueryProcessor
from services.broker.processors.reading import reading
from services.broker.processors.refusal import RefusalError
from services.broker.processors.send import SendProcessor
from services.broker.processors.statistics import StatisticsProcessor
from services.broker.processors.topicadmin import TopicAdminProcessor
from services.broker.registry.persistence import NotSavedError

_Read = Callable[[Channel, RemotingCommand], RemotingCommand]
_Async = Callable[[Channel, RemotingCommand], Awaitable[RemotingCommand | None]]
# A handler that replies at once, unless it has to wait for the disk.
_Sync = Callable[[Channel, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]


def handlers(
    *,
    send: SendProcessor,
    pull: PullProcessor,
    offset: OffsetProcessor,
    query: QueryProcessor,
    clients: ClientProcessor,
    topics: TopicAdminProcessor,
    groups: GroupAdminProcessor,
    statistics: StatisticsProcessor,
    backlog: BacklogProcessor,
    connections: ConnectionProcessor,
    broker: BrokerAdminProcessor,
    cold: ColdReader,
) -> Mapping[int, Handler]:
    """Return the handler of each request code."""
    code = RequestCode
    at_once: dict[int, _Sync] = {
        code.PULL_MESSAGE: pull.pull,
        code.LITE_PULL_MESSAGE: pull.pull,
        code.UPDATE_CONSUMER_OFFSET: offset.update_consumer_offset,
        code.GET_MAX_OFFSET: offset.max_offset,
        code.GET_MIN_OFFSET: offset.min_offset,
        code.HEART_BEAT: clients.heartbeat,
        code.UNREGISTER_CLIENT: clients.unregister,
        code.CHECK_CLIENT_CONFIG: clients.check_config,
        code.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
        code.GET_ALL_TOPIC_CONFIG: topics.all_configs,
        code.GET_TOPIC_CONFIG: topics.config,
        code.QUERY_TOPIC_CONSUME_BY_WHO: topics.consumed_by,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.config,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all_configs,
        code.GET_ALL_DELAY_OFFSET: groups.all_delay_offsets,
        code.VIEW_BROKER_STATS_DATA: statistics.view,
        code.GET_CONSUMER_CONNECTION_LIST: connections.consumers,
        code.GET_PRODUCER_CONNECTION_LIST: connections.producers,
        code.GET_ALL_PRODUCER_INFO: connections.all_producers,
        code.QUERY_TOPICS_BY_CONSUMER: connections.topics_of,
        code.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.subscription_of,
        code.GET_BROKER_CONFIG: broker.config,
    }
    in_a_task: dict[int, _Async] = {
        code.QUERY_MESSAGE: query.by_key,
        code.UPDATE_AND_CREATE_TOPIC: topics.create,
        code.UPDATE_AND_CREATE_TOPIC_LIST: topics.create_list,
        code.DELETE_TOPIC_IN_BROKER: topics.delete,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.create,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.create_list,
        code.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        code.GET_ALL_CONSUMER_OFFSET: groups.all_offsets,
        code.GET_CONSUMER_RUNNING_INFO: connections.running_info,
        code.UPDATE_BROKER_CONFIG: broker.change_config,
        code.GET_TOPIC_STATS_INFO: statistics.topic_stats,
        code.GET_CONSUME_STATS: statistics.consume_stats,
        code.GANTRY_QUEUE_STATES: statistics.queue_states,
        code.GANTRY_UNITS: backlog.units,
        code.GANTRY_HEADS: backlog.heads,
    }
    # The handlers of these three codes make the replies for refusals themselves: these replies have more fields.
    table: dict[int, Handler] = {code.SEND_MESSAGE: send.send, code.SEND_MESSAGE_V2: send.send}
    table[code.SEND_BATCH_MESSAGE] = send.send_batch
    table |= {number: _guarded(handler) for number, handler in at_once.items()}
    table |= {number: _guarded(reading(cold, handler)) for number, handler in _reads(offset, query, broker).items()}
    table |= {number: _guarded_task(handler) for number, handler in in_a_task.items()}
    table |= {number: _not_built(number, feature) for number, feature in NOT_BUILT.items()}
    return table


def _reads(offset: OffsetProcessor, query: QueryProcessor, broker: BrokerAdminProcessor) -> dict[int, _Read]:
    """Return the handlers that may read from the disk. They change nothing, so they can run several times."""
    code = RequestCode
    return {
        code.QUERY_CONSUMER_OFFSET: offset.query_consumer_offset,
        code.SEARCH_OFFSET_BY_TIMESTAMP: offset.search_offset,
        code.GET_EARLIEST_MSG_STORETIME: offset.earliest_store_time,
        code.VIEW_MESSAGE_BY_ID: query.by_offset,
        code.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
    }


def _guarded(handler: _Sync) -> Handler:
    def guarded(
        channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        try:
            reply = handler(channel, request)
        except (RefusalError, InvalidValueError) as error:
            return _refusal(request, error)
        return reply if reply is None or isinstance(reply, RemotingCommand) else _answer_later(request, reply)

    return guarded


def _guarded_task(handler: _Async) -> Handler:
    return lambda channel, request: _answer_later(request, handler(channel, request))


async def _answer_later(request: RemotingCommand, reply: Awaitable[RemotingCommand | None]) -> RemotingCommand | None:
    try:
        return await reply
    except (RefusalError, NotSavedError, InvalidValueError) as error:
        return _refusal(request, error)


def _refusal(request: RemotingCommand, error: RefusalError | NotSavedError | InvalidValueError) -> RemotingCommand:
    if isinstance(error, RefusalError):
        return error.reply_to(request)
    is_value = isinstance(error, InvalidValueError)
    code = ResponseCode.INVALID_PARAMETER if is_value else ResponseCode.SERVICE_NOT_AVAILABLE
    return RemotingCommand.response_to(request, code, remark=str(error))


def _not_built(number: int, feature: str) -> Handler:
    remark = f" request type {number} not supported: {feature} comes in a later release"

    def refuse(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    return refuse
