"""Bodies of the operations on transactions, as typed structs."""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gantry.model.errors import InvalidValueError
from gantry.model.names import check_group, is_system_group
from services.gateway.schemas.outgoing import RawMessage, Sendable, TextMessage
from services.gateway.schemas.reading import READ_ERRORS, refuse_duplicates, translate
from services.gateway.schemas.times import parse_duration_ms

IMMUNITY_S_MAX: Final = 86_400
"""Longest immunity time: a day. Brokers give transactions up after three days by default."""
_SECOND_MS: Final = 1_000


class _TextTransaction(TextMessage, kw_only=True):
    group: str
    check_immunity: str | UnsetType = UNSET


class _RawTransaction(RawMessage, kw_only=True):
    group: str
    check_immunity: str | UnsetType = UNSET


_text = msgspec.json.Decoder(_TextTransaction)
_any_body = msgspec.json.Decoder(_RawTransaction)


@dataclass(frozen=True, slots=True)
class NewTransaction:
    """A transaction to begin.

    Attributes:
        message: Its message.
        group: Producer group.
        immunity_s: Time (s) during which the broker does not ask; None for the broker's setting.
    """

    message: Sendable
    group: str
    immunity_s: int | None


def read_transaction(data: bytes) -> NewTransaction:
    """Return the transaction in a JSON text. Raises InvalidValueError."""
    found: _TextTransaction | _RawTransaction
    try:
        found = _text.decode(data)
    except READ_ERRORS:
        try:
            found = _any_body.decode(data)
        except READ_ERRORS as error:
            raise translate(error, "", data) from None
    refuse_duplicates(data)
    check_group(found.group, field="/group")
    if is_system_group(found.group):
        raise InvalidValueError("/group", found.group, "belongs to the system")
    if found.one_way is not UNSET:
        raise InvalidValueError("/one_way", found.one_way, "can't be given for a transaction, which needs the answer")
    if found.idempotency_key is not UNSET:
        raise InvalidValueError("/idempotency_key", found.idempotency_key, "is the header Idempotency-Key here")
    immunity_s = None
    if found.check_immunity is not UNSET:
        text, field = found.check_immunity, "/check_immunity"
        immunity_ms = parse_duration_ms(text, field, max_ms=IMMUNITY_S_MAX * _SECOND_MS)
        if immunity_ms < _SECOND_MS:
            raise InvalidValueError(field, text, "is shorter than a second")
        immunity_s = -(-immunity_ms // _SECOND_MS)
    return NewTransaction(found, found.group, immunity_s)
