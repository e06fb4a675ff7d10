"""Errors of the name server.

NamesrvError                what a request is refused for; becomes a response code and a remark, never a closed connection
├── RefusedError            code 1: the request contradicts itself or what is registered
│   └── TableFullError      a table has reached its limit
├── NotReadyError           code 1: the wait for brokers after a start is not over
├── DisabledError           code 1: a setting switched this request off
├── ForbiddenError          code 16: this setting may not be changed from outside
├── NoRouteError            code 17: nobody serves the topic
└── NoConfigError           code 22: there is no such key or namespace
"""

from gantry.remoting.codes import ResponseCode


class NamesrvError(Exception):
    """Root of the family; `code` is what the peer is answered."""

    code = ResponseCode.SYSTEM_ERROR


class RefusedError(NamesrvError):
    """The request contradicts itself or what is registered; the message names field and value."""


class TableFullError(RefusedError):
    """A table has reached its limit, and what is asked for would make it larger."""


class NotReadyError(NamesrvError):
    """The name server has just started and waits for brokers before it says that a topic has no route."""


class DisabledError(NamesrvError):
    """A setting switched this request off."""


class ForbiddenError(NamesrvError):
    """The setting may not be changed from outside."""

    code = ResponseCode.NO_PERMISSION


class NoRouteError(NamesrvError):
    """Nobody serves the topic."""

    code = ResponseCode.TOPIC_NOT_EXIST


class NoConfigError(NamesrvError):
    """There is no such key or namespace."""

    code = ResponseCode.QUERY_NOT_FOUND
