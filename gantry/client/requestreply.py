"""Request-reply: send a message and wait for the reply of a consumer.

Theory of operation. A request is a message with three properties: an id of the request (CORRELATION_ID), the client id
of the sender (REPLY_TO_CLIENT) and the time for the reply (TTL). A consumer replies with a message that has the same
properties (`reply_to`), which it sends with any producer. The reply goes to a broker of the cluster that had the
request, not always to the same broker. That broker pushes it to the connection on which the client that asked sent its
latest heart-beat. So all brokers of the cluster must have this client's heart-beat before the first request is sent.

The reply may come before the answer to the send. It counts as soon as it comes: the send and the wait are independent.

Source: RocketMQ 5.3 DefaultMQProducerImpl.request and MessageUtil.

Concurrency: the event loop's thread, any number of requests at once.
"""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gantry.client.engine import ClientEngine
from gantry.client.errors import InvalidArgumentError, NoRouteError, Outcome, RequestTimeoutError, SendError
from gantry.client.producer import Producer
from gantry.client.replies import Reply
from gantry.client.sendrequest import SendResult
from gantry.model.message import Message, StoredMessage
from gantry.model.names import reply_topic
from gantry.model.propertyname import PropertyName

REPLY_TYPE = "reply"


class Requester:
    """Sends requests with a producer, which must be started."""

    def __init__(self, engine: ClientEngine, producer: Producer) -> None:
        self._engine = engine
        self._producer = producer
        self._announced: set[str] = set()
        self._announcing = asyncio.Lock()

    async def request(self, message: Message, *, timeout_ms: int, ordering_key: str | None = None) -> Reply:
        """Send a message and return the reply to it.

        Args:
            message: The request. It gets the properties of a request.
            timeout_ms: Time-out for the send and the reply together.
            ordering_key: Key whose messages all go to the same queue.

        Raises:
            InvalidArgumentError, NotStartedError: As `Producer.send`.
            NoRouteError, BrokerError, NoAnswerError: The route of the topic is not known.
            SendError: The request was not stored; or its outcome is unknown, and no reply came.
            RequestTimeoutError: No reply came in time. A consumer may still handle the request.
            BackpressureError: Too many requests wait for replies; nothing was sent.
        """
        if timeout_ms <= 0:
            raise InvalidArgumentError("timeout_ms", timeout_ms, "is not above 0")
        correlation_id = str(uuid.UUID(bytes=self._engine.rng.bytes(16), version=4))
        properties = {
            **message.properties,
            PropertyName.CORRELATION_ID: correlation_id,
            PropertyName.REPLY_TO_CLIENT: self._engine.client_id,
            PropertyName.TTL: str(timeout_ms),
        }
        waiting = self._engine.replies.expect(correlation_id)
        sending: asyncio.Task[SendResult] | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._announce(message.topic)
                request = replace(message, properties=properties)
                sending = asyncio.ensure_future(self._producer.send(request, ordering_key=ordering_key))
                both: list[asyncio.Future[Any]] = [sending, waiting]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                _raise_if_not_stored(sending)
                return await waiting
        except TimeoutError:
            error = sending.exception() if sending is not None and sending.done() else None
            if error is not None:
                raise error from None
            address = f"topic {message.topic}"
            raise RequestTimeoutError(address, f"no reply within {timeout_ms} ms", sent=True) from None
        finally:
            self._engine.replies.forget(correlation_id)
            if sending is not None:
                sending.cancel()

    async def _announce(self, topic: str) -> None:
        """Send a heart-beat to the brokers that may get the reply, unless they have one.

        The engine repeats heart-beats by itself, also after a connection was lost.
        """
        route = await self._engine.route(topic)
        for cluster in {broker.cluster for broker in route.broker_datas}:
            try:
                await self._engine.route(reply_topic(cluster))
            except NoRouteError:
                continue
        async with self._announcing:
            brokers = self._engine.brokers().values()
            masters = {broker.master_address for broker in brokers if broker.master_address is not None}
            if not masters <= self._announced:
                await self._engine.heartbeats.send_now(self._engine.client_id)
                self._announced = masters


def reply_to(request: StoredMessage, body: bytes, properties: Mapping[str, str] | None = None) -> Message:
    """Return the reply to a request, for `Producer.send`.

    Args:
        request: The message as it was pulled.
        body: Body of the reply.
        properties: Further properties of the reply.

    Raises:
        InvalidArgumentError: The message is no request, or the broker that stored it did not name its cluster.
    """
    names = (PropertyName.CLUSTER, PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT)
    for name in names:
        if not request.properties.get(name):
            raise InvalidArgumentError("request", request.message_id, f"has no property {name}")
    cluster, correlation_id, client_id = (request.properties[name] for name in names)
    own = {
        PropertyName.MSG_TYPE: REPLY_TYPE,
        PropertyName.CORRELATION_ID: correlation_id,
        PropertyName.REPLY_TO_CLIENT: client_id,
    }
    if PropertyName.TTL in request.properties:
        own[PropertyName.TTL] = request.properties[PropertyName.TTL]
    return Message(reply_topic(cluster), body, {**(properties or {}), **own})


def _raise_if_not_stored(sending: "asyncio.Task[SendResult]") -> None:
    """Raise the error of a send that has ended, unless the request may be stored: a reply may come then."""
    error = sending.exception() if sending.done() else None
    if error is not None and not (isinstance(error, SendError) and error.outcome is Outcome.UNKNOWN):
        raise error
