"""Errors of the name server.

NamesrvError                a refused request: the reply has a response code and a remark; the connection stays open
├── RefusedError            code 1: the request contradicts itself or the registered data
│   └── TableFullError      a table has reached its limit
├── NotReadyError           code 1: the wait for brokers after a start is not over
├── DisabledError           code 1: a setting has disabled this request
├── ForbiddenError          code 16: a request may not change this setting
├── NoRouteError            code 17: no broker serves the topic
└── NoConfigError           code 22: the key or namespace does not exist
"""

from gantry.remoting.codes import ResponseCode


class NamesrvError(Exception):
    """The root of the errors; `code` is the response code of the reply."""

    code = ResponseCode.SYSTEM_ERROR


class RefusedError(NamesrvError):
    """The request contradicts itself or the registered data. The message names field and value."""


class TableFullError(RefusedError):
    """A table has reached its limit, and the request would make it larger."""


class NotReadyError(NamesrvError):
    """The name server has just started. It waits for brokers before it reports that a topic has no route."""


class DisabledError(NamesrvError):
    """A setting has disabled this request."""


class ForbiddenError(NamesrvError):
    """A request may not change this setting."""

    code = ResponseCode.NO_PERMISSION


class NoRouteError(NamesrvError):
    """No broker serves the topic."""

    code = ResponseCode.TOPIC_NOT_EXIST


class NoConfigError(NamesrvError):
    """The key or namespace does not exist."""

    code = ResponseCode.QUERY_NOT_FOUND
