"""The key-value pairs of a name server, such as ORDER_TOPIC_CONFIG: 100, 101, 102 and 219."""

from gantry.remoting.headers.fields import Header


class PutKvConfigHeader(Header):
    """100: set the value of a key."""

    namespace: str
    key: str
    value: str


class GetKvConfigHeader(Header):
    """101: get the value of a key."""

    namespace: str
    key: str


class GetKvConfigResponseHeader(Header):
    """The response to 101."""

    value: str | None = None


class DeleteKvConfigHeader(Header):
    """102: delete a key."""

    namespace: str
    key: str


class GetKvListHeader(Header):
    """219: get all pairs of a namespace."""

    namespace: str
