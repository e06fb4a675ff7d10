"""The properties of a message on their way into the store.

A message is stored with what its producer gave it and with MSG_REGION, TRACE_ON, CLUSTER and, if it has none, a
UNIQ_KEY. Since of a name that stands twice the last value counts, these are put at the end of the text; the text
itself is looked through by one regular expression and only taken apart if that finds a name with a meaning of its
own. That costs about a microsecond a message instead of five.
"""

import re
from collections.abc import Callable

from gantry.model.errors import InvalidMessageError
from gantry.model.message import decode_properties, encode_properties
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import ResponseCode
from services.broker.identity import BrokerIdentity
from services.broker.processors.notbuilt import refuse_unbuilt
from services.broker.processors.refusal import RefusalError

# Names that mean the text can't be stored as it is, each right after a separator. What their values mean is judged
# once the text is taken apart.
_SPECIAL = (
    r"\x02(?:DELAY\x01|TIMER_|TRAN_MSG\x01|__STARTDELIVERTIME\x01|POP_CK|1ST_POP_TIME\x01|INNER_|WAIT\x01false"
    r"|MSG_REGION\x01|TRACE_ON\x01|CLUSTER\x01|__CRC32#)"
)
_find_special = re.compile(_SPECIAL).search
_find_special_bytes = re.compile(_SPECIAL.encode()).search

_UNIQ_KEY, _TAGS, _KEYS = "\x02UNIQ_KEY\x01", "\x02TAGS\x01", "\x02KEYS\x01"
_UNIQ_KEY_BYTES, _TAGS_BYTES, _KEYS_BYTES = _UNIQ_KEY.encode(), _TAGS.encode(), _KEYS.encode()
_KEY_FIRST = _UNIQ_KEY_BYTES[1:]
_KNOWN_MAX = 4096
_KNOWN_BYTES_MAX = 256
# What the broker writes itself, or the store.
_OWN = (PropertyName.MSG_REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER, PropertyName.CRC32)


# What goes into the record; tag and keys, None where the store is to look them up; the unique key, for the reply, too.
# A plain tuple, as one is made for every message.
StoredProperties = tuple[bytes, str | None, str | None, str]


class SendProperties:
    """Completes properties for one broker."""

    __slots__ = ("_known", "_make_key", "_suffix", "_suffix_bytes")

    def __init__(self, identity: BrokerIdentity, make_unique_key: Callable[[], str]) -> None:
        self._make_key = make_unique_key
        self._suffix_bytes = encode_properties(
            {
                PropertyName.MSG_REGION: identity.region_id,
                PropertyName.TRACE_ON: "true" if identity.trace_on else "false",
                PropertyName.CLUSTER: identity.cluster,
            }
        )
        self._suffix = self._suffix_bytes.decode()
        # Of items that begin with a key of the usual length, by everything behind it: tag, keys, what is put at the end.
        self._known: dict[bytes, tuple[str, str, bytes]] = {}

    def complete(self, text: str | None) -> tuple[StoredProperties, bool]:
        """Return a message's properties as they are to be stored, and whether its producer waits for the disk.

        Raises:
            RefusalError: They ask for what is not built, or can't be stored.
        """
        if not text:
            key = self._make_key()
            return (f"UNIQ_KEY\x01{key}\x02{self._suffix}".encode(), "", "", key), True
        if text[-1] != "\x02":
            text += "\x02"
        searched = "\x02" + text
        if _find_special(searched):
            return self._complete_slowly(text)
        start = searched.rfind(_TAGS)
        tag = (searched[start + 6 : searched.find("\x02", start + 6)] or None) if start >= 0 else ""
        start = searched.rfind(_KEYS)
        # An empty value does not count, and an earlier one of the same name may: the store looks.
        keys = (searched[start + 6 : searched.find("\x02", start + 6)] or None) if start >= 0 else ""
        start = searched.rfind(_UNIQ_KEY)
        key = searched[start + 10 : searched.find("\x02", start + 10)] if start >= 0 else ""
        try:
            if key:
                return ((text + self._suffix).encode(), tag, keys, key), True
            key = self._make_key()
            return (f"{text}UNIQ_KEY\x01{key}\x02{self._suffix}".encode(), tag, keys, key), True
        except UnicodeEncodeError as error:
            raise _not_utf8(error) from None

    def complete_item(self, data: bytes, shared: bytes) -> StoredProperties:
        """Return the properties of a batch's item as they are to be stored.

        Args:
            data: The item's own.
            shared: Those of the whole batch without a unique key, ending with a separator if there are any.

        Raises:
            RefusalError: They ask for what is not built.
        """
        # Without their unique keys, the properties of a batch's items are nearly always the same.
        if data[:9] != _KEY_FIRST or data.find(b"\x02", 9) != 41 or data[-1] != 0x02:
            return self._complete_any(data, shared)
        known = self._known.get(data[42:] + shared)
        if known is not None:
            tag, keys, tail = known
            return data + tail, tag, keys, str(data[9:41], "utf-8", "replace")
        completed = self._complete_any(data, shared)
        self._remember(data, shared, completed)
        return completed

    def _remember(self, data: bytes, shared: bytes, completed: StoredProperties) -> None:
        stored, tag, keys, _ = completed
        rest, tail = data[42:] + shared, shared + self._suffix_bytes
        # Nothing in them was changed, looked for elsewhere, or a second unique key.
        if tag is not None and keys is not None and stored == data + tail and _KEY_FIRST not in rest:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if len(rest) <= _KNOWN_BYTES_MAX:
                self._known[rest] = (tag, keys, tail)

    def _complete_any(self, data: bytes, shared: bytes) -> StoredProperties:
        if data and data[-1] != 0x02:
            data += b"\x02"
        searched = b"\x02" + data
        if _find_special_bytes(searched):
            return self._complete_slowly(str(data, "utf-8", "replace"), shared=shared)[0]
        start = searched.rfind(_UNIQ_KEY_BYTES)
        key = searched[start + 10 : searched.find(b"\x02", start + 10)] if start >= 0 else b""
        if shared:
            searched += shared
            data += shared
        start = searched.rfind(_TAGS_BYTES)
        tag = (
            (str(searched[start + 6 : searched.find(b"\x02", start + 6)], "utf-8", "replace") or None)
            if start >= 0
            else ""
        )
        start = searched.rfind(_KEYS_BYTES)
        keys = (
            (str(searched[start + 6 : searched.find(b"\x02", start + 6)], "utf-8", "replace") or None)
            if start >= 0
            else ""
        )
        if key:
            return data + self._suffix_bytes, tag, keys, str(key, "utf-8", "replace")
        made = self._make_key()
        return b"%sUNIQ_KEY\x01%s\x02%s" % (data, made.encode(), self._suffix_bytes), tag, keys, made

    def _complete_slowly(self, text: str, shared: bytes = b"") -> tuple[StoredProperties, bool]:
        properties = _decoded(text)
        refuse_unbuilt(properties)
        for name in _OWN:
            properties.pop(name, None)
        key = properties.get(PropertyName.UNIQ_KEY)
        if key is None:
            key = properties[PropertyName.UNIQ_KEY] = self._make_key()
        is_patient = properties.get(PropertyName.WAIT) != "false"
        try:
            data = encode_properties(properties)
        except InvalidMessageError as error:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        return (data + shared + self._suffix_bytes, None, None, key), is_patient


def shared_by_batch(text: str | None) -> tuple[bytes, str | None, bool]:
    """Take the properties of a whole batch apart: what its messages share, its unique key, and whether it is patient.

    Each message keeps its own unique key, since that is the id its producer was given for it; RocketMQ writes the
    batch's key over them all.

    Raises:
        RefusalError: They ask for what is not built, or can't be stored.
    """
    if not text:
        return b"", None, True
    properties = _decoded(text)
    refuse_unbuilt(properties)
    key = properties.pop(PropertyName.UNIQ_KEY, None)
    for name in _OWN:
        properties.pop(name, None)
    try:
        return encode_properties(properties), key, properties.get(PropertyName.WAIT) != "false"
    except InvalidMessageError as error:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _decoded(text: str) -> dict[str, str]:
    try:
        return decode_properties(text.encode())
    except UnicodeEncodeError as error:
        raise _not_utf8(error) from None


def _not_utf8(error: UnicodeEncodeError) -> RefusalError:
    return RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"properties can't be written as UTF-8: {error}")
