"""Brokers that store groups and offsets, behind the scripted transport."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ConsumerIdList, HeartbeatData, LockedQueues, LockRequest
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.registry.queuelocks import QueueLocks
from tests.support.scriptedpeer import ScriptedCluster, ScriptedOutcome, ScriptedTransport, ok, refuse


class GroupBrokers:
    """All brokers of a scripted cluster, with one common table of members and one of offsets."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self.members: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.foreign: list[str] = []
        self.committed: dict[tuple[str, str, str, int], int] = {}
        self.max_offset = 100
        self.min_offset = 10
        self.transport = transport
        self.locks: dict[str, QueueLocks] = defaultdict(QueueLocks)

    def serve(self, *brokers: str) -> None:
        for broker in brokers:
            self.transport.at(
                f"{broker}:10911",
                {
                    RequestCode.HEART_BEAT: lambda request, broker=broker: self._beat(broker, request),
                    RequestCode.UNREGISTER_CLIENT: lambda request, broker=broker: self._leave(broker, request),
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda request, broker=broker: self._list(broker, request),
                    RequestCode.QUERY_CONSUMER_OFFSET: lambda request, broker=broker: self._committed(broker, request),
                    RequestCode.UPDATE_CONSUMER_OFFSET: lambda request, broker=broker: self._commit(broker, request),
                    RequestCode.LOCK_BATCH_MQ: lambda request, broker=broker: self._lock(broker, request),
                    RequestCode.UNLOCK_BATCH_MQ: lambda request, broker=broker: self._unlock(broker, request),
                    RequestCode.GET_MAX_OFFSET: lambda request: ok(request, ext={"offset": str(self.max_offset)}),
                    RequestCode.GET_MIN_OFFSET: lambda request: ok(request, ext={"offset": str(self.min_offset)}),
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: ok(
                        request, ext={"offset": str(int(request.ext_fields["timestamp"]) // 1000)}
                    ),
                },
            )

    def _beat(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        beat = HeartbeatData.decode(request.body_bytes)
        for consumer in beat.consumers:
            self.members[broker][consumer.group_name].add(beat.client_id)
        return ok(request)

    def _leave(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        self.members[broker][request.ext_fields["consumerGroup"]].discard(request.ext_fields["clientID"])
        return ok(request)

    def _list(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        ids = [*self.members[broker][request.ext_fields["consumerGroup"]], *self.foreign]
        if not ids:
            return refuse(ResponseCode.SYSTEM_ERROR, "no consumer for this group")(request)
        return ok(request, body=ConsumerIdList(consumer_id_list=ids).encode())

    def lock(self, broker: str, client_id: str, group: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Lock queues for a client, as a broker does."""
        return self.locks[broker].lock(group, client_id, queues, round(asyncio.get_running_loop().time() * 1000))

    def _lock(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        wanted = LockRequest.decode(request.body_bytes)
        locked = self.lock(broker, wanted.client_id, wanted.consumer_group, wanted.queues)
        return ok(request, body=LockedQueues(locked).encode())

    def _unlock(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        wanted = LockRequest.decode(request.body_bytes)
        self.locks[broker].unlock(wanted.consumer_group, wanted.client_id, wanted.queues)
        return ok(request)

    def _key(self, broker: str, request: RemotingCommand) -> tuple[str, str, str, int]:
        ext = request.ext_fields
        return ext["consumerGroup"], ext["topic"], broker, int(ext["queueId"])

    def _committed(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        assert request.ext_fields["setZeroIfNotFound"] == "false"
        offset = self.committed.get(self._key(broker, request))
        if offset is None:
            return refuse(ResponseCode.QUERY_NOT_FOUND, "not found")(request)
        return ok(request, ext={"offset": str(offset)})

    def _commit(self, broker: str, request: RemotingCommand) -> ScriptedOutcome:
        self.committed[self._key(broker, request)] = int(request.ext_fields["commitOffset"])
        return ok(request)


@pytest.fixture
def groups(cluster: ScriptedCluster, transport: ScriptedTransport) -> GroupBrokers:
    cluster.topic("T", "a", "b")
    groups = GroupBrokers(transport)
    groups.serve("a", "b")
    return groups
