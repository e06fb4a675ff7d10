"""The share of a topic's queues that belongs to one member of a group."""

from collections.abc import Sequence

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, GroupDeletedError
from gantry.model.allocate import allocate_averagely
from gantry.model.group import MessageModel
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ConsumerIdList
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import GetConsumerListHeader


async def find_share(
    engine: ClientEngine, group: str, client_id: str, topic: str, model: MessageModel
) -> Sequence[MessageQueue]:
    """Ask for the members of the group, and return the share of the one with this id.

    In broadcasting mode, the share of every member is all queues. The members are asked for nevertheless, because the
    answer tells whether the brokers know this one, and whether the group was deleted.

    Raises:
        NoRouteError: The topic does not exist.
        GroupDeletedError: The group was deleted while this engine was a member of it.
        ClientError: No broker answers who the members are.
    """
    queues = await engine.subscribe_queues(topic)
    if not queues:
        return ()
    try:
        client_ids = await _client_ids(engine, group, queues)
    except GroupDeletedError:
        raise
    except BrokerError:
        client_ids = ()  # A broker that knows no member of the group refuses the request.
    if client_id not in client_ids:
        # A broker that was away has forgotten this client.
        await engine.heartbeats.send_now(client_id)
        client_ids = await _client_ids(engine, group, queues)
    if model is MessageModel.BROADCASTING:
        return queues
    return allocate_averagely(client_id, queues, sorted(client_ids))


async def _client_ids(engine: ClientEngine, group: str, queues: Sequence[MessageQueue]) -> Sequence[str]:
    """Return the ids from the first broker that answers, asked in an order that is the same for all members."""
    failure: ClientError | None = None
    deletion: GroupDeletedError | None = None
    for broker_name in sorted({queue.broker_name for queue in queues}):
        try:
            address = engine.read_address(broker_name)
            response = await engine.call(
                address,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                GetConsumerListHeader(consumer_group=group),
                timeout_ms=engine.settings.namesrv_timeout_ms,
            )
            return read_body(ConsumerIdList.decode, response, address).consumer_id_list
        except BrokerError as error:
            failure = error
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                deletion = GroupDeletedError(error.code, error.remark, error.address)
        except ClientError as error:
            failure = error
    assert failure is not None, "there is at least one queue"
    raise deletion or failure
