"""Request 900000, Gantry's own: the state of all queues of a topic."""

from gantry.remoting.headers.fields import Header


class QueueStatesHeader(Header):
    """900000: get the queues of a topic and, if `consumer_group` is set, the committed offsets of that group."""

    topic: str
    consumer_group: str | None = None
