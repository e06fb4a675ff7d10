"""Reads answers of brokers and name servers. An answer that can't be read counts as a refusal by its sender."""

from collections.abc import Callable
from typing import TypeVar

from gantry.client.errors import BrokerError
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BodyError, HeaderError
from gantry.remoting.headers.fields import Header

H = TypeVar("H", bound=Header)
T = TypeVar("T")


def read_header(kind: type[H], response: RemotingCommand, address: str) -> H:
    """Return an answer's typed header. Raises BrokerError if it is not a header of that type."""
    try:
        return kind.from_ext(response.ext_fields)
    except HeaderError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {error}", address) from None


def read_body(decode: Callable[[bytes], T], response: RemotingCommand, address: str) -> T:
    """Return an answer's decoded body. Raises BrokerError if it can't be decoded."""
    try:
        return decode(response.body_bytes)
    except BodyError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {error}", address) from None
