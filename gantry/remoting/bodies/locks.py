"""Locks of queues for consumption in order: the bodies of 41 and 42, and of the response to 41."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from gantry.model.message import MessageQueue
from gantry.remoting.bodies.fastjson import JsonBody, MessageQueueBean, encode_json, queue_bean


class _LockRequestBean(JsonBody, kw_only=True):
    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBean]
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockRequest:
    """41 and 42: lock queues for a client of a group, or unlock them; each queue once.

    Attributes:
        only_this_broker: Whether the broker must not ask its replicas. A broker sets it when it asks another one.
    """

    client_id: str
    consumer_group: str
    queues: Sequence[MessageQueue]
    only_this_broker: bool = False

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(
            _LockRequestBean(
                client_id=self.client_id,
                consumer_group=self.consumer_group,
                mq_set=[queue_bean(queue) for queue in self.queues],
                only_this_broker=self.only_this_broker,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a request of this kind.
        """
        bean = _LockRequestBean.decode(data)
        queues = tuple(dict.fromkeys(queue.to_model() for queue in bean.mq_set))
        return cls(bean.client_id, bean.consumer_group, queues, bean.only_this_broker)


class _LockedBean(JsonBody, kw_only=True):
    locked: list[MessageQueueBean] = msgspec.field(name="lockOKMQSet")


@dataclass(frozen=True, slots=True)
class LockedQueues:
    """41, response: the requested queues that the client has locked."""

    queues: Sequence[MessageQueue]

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(_LockedBean(locked=[queue_bean(queue) for queue in self.queues]))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body.

        Raises:
            BodyError: The data is not a list of queues.
        """
        return cls(tuple(queue.to_model() for queue in _LockedBean.decode(data).locked))
