"""A name server's key-values, such as ORDER_TOPIC_CONFIG: 100, 101, 102 and 219."""

from gantry.remoting.headers.fields import Header


class PutKvConfigHeader(Header):
    """100: set one."""

    namespace: str
    key: str
    value: str


class GetKvConfigHeader(Header):
    """101: get one."""

    namespace: str
    key: str


class GetKvConfigResponseHeader(Header):
    """The answer to 101."""

    value: str | None = None


class DeleteKvConfigHeader(Header):
    """102: remove one."""

    namespace: str
    key: str


class GetKvListHeader(Header):
    """219: all of a namespace."""

    namespace: str
