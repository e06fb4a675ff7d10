"""Gantry's own request 900000: the state of every queue of a topic at once."""

from gantry.remoting.headers.fields import Header


class QueueStatesHeader(Header):
    """900000: the queues of a topic and, if one is named, how far a consumer group has come in them."""

    topic: str
    consumer_group: str | None = None
