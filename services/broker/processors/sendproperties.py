"""Completes the properties of a message before it is stored.

The broker stores the properties of the producer and adds MSG_REGION, TRACE_ON, CLUSTER and, if it is missing, UNIQ_KEY.
It adds them at the end of the text, because the last value counts if a name occurs twice. One regular expression
searches the text for names with a special meaning. The text is decoded only if there is such a name without a quick
hook (newmessage.py). This takes about one microsecond a message instead of five.
"""

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from gantry.model.errors import InvalidMessageError
from gantry.model.message import decode_properties, encode_properties
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import ResponseCode
from services.broker.identity import BrokerIdentity
from services.broker.newmessage import QuickHook
from services.broker.processors.unsupported import is_neutral, refuse_unsupported
from services.broker.refusal import RefusalError

# Names with which the text can't be stored unchanged, each after a separator. Their values are examined only after
# the text is decoded.
_SPECIAL = (
    r"\x02(?:DELAY\x01|TIMER_|TRAN_MSG\x01|__STARTDELIVERTIME\x01|POP_CK|1ST_POP_TIME\x01|INNER_|WAIT\x01false"
    r"|MSG_REGION\x01|TRACE_ON\x01|CLUSTER\x01|__CRC32#)"
)
_find_special = re.compile(_SPECIAL).search
_find_special_bytes = re.compile(_SPECIAL.encode()).search
# Properties that hooks set. A quick hook could only add them a second time.
_TRANSACTION_ID = f"\x02{PropertyName.TRANSACTION_ID}\x01"

_UNIQ_KEY, _TAGS, _KEYS = "\x02UNIQ_KEY\x01", "\x02TAGS\x01", "\x02KEYS\x01"
_UNIQ_KEY_BYTES, _TAGS_BYTES, _KEYS_BYTES = _UNIQ_KEY.encode(), _TAGS.encode(), _KEYS.encode()
_KEY_FIRST = _UNIQ_KEY_BYTES[1:]
_CACHED_MAX = 4096
_CACHED_BYTES_MAX = 256
# The properties that the broker or the store writes itself.
_BROKER_PROPERTIES = (PropertyName.MSG_REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER, PropertyName.CRC32)


# The properties as bytes of the record; the tag; the keys; the unique key, which the reply also needs. Tag or keys
# are None if the store must look them up. A plain tuple, because the broker makes one for every message.
StoredProperties = tuple[bytes, str | None, str | None, str]
# The stored form; whether the producer waits for the disk; for a special message, whose hooks read and change its
# properties, all properties decoded (the stored form then has only the unique key), else None; and for a message whose
# only special property has a quick hook, this hook and the value of the property, else None.
Completed = tuple[StoredProperties, bool, dict[str, str] | None, tuple[QuickHook, str] | None]


class SendProperties:
    """Completes the properties of messages for one broker."""

    __slots__ = ("_added", "_cached", "_make_key", "_quick", "_special", "_suffix", "_suffix_bytes")

    def __init__(
        self,
        identity: BrokerIdentity,
        make_unique_key: Callable[[], str],
        special: AbstractSet[str] = frozenset(),
        quick: Mapping[str, QuickHook] = MappingProxyType({}),
    ) -> None:
        """Create it.

        Args:
            identity: Identity of the broker.
            make_unique_key: Function that makes a unique key.
            special: Names of the properties that make a message special (newmessage.py).
            quick: Quick hooks by the names of their properties.
        """
        self._make_key = make_unique_key
        self._special = special
        self._quick = quick
        self._added = {
            PropertyName.MSG_REGION: identity.region_id,
            PropertyName.TRACE_ON: "true" if identity.trace_on else "false",
            PropertyName.CLUSTER: identity.cluster,
        }
        self._suffix_bytes = encode_properties(self._added)
        self._suffix = self._suffix_bytes.decode()
        # Results for batch items that begin with a unique key of the usual length. Key: everything after the unique
        # key. Value: tag, keys, and the text to append.
        self._cached: dict[bytes, tuple[str, str, bytes]] = {}

    def complete(self, text: str | None) -> Completed:
        """Return a message's properties in the form that its way to the store needs.

        Raises:
            RefusalError: A property asks for a feature that does not exist yet, or can't be stored.
        """
        if not text:
            key = self._make_key()
            return (f"UNIQ_KEY\x01{key}\x02{self._suffix}".encode(), "", "", key), True, None, None
        if text[-1] != "\x02":
            text += "\x02"
        searched = "\x02" + text
        quick = None
        special = _find_special(searched)
        if special and (quick := self._find_quick(searched, special)) is None:
            return self.complete_decoded(text)
        start = searched.rfind(_TAGS)
        tag = (searched[start + 6 : searched.find("\x02", start + 6)] or None) if start >= 0 else ""
        start = searched.rfind(_KEYS)
        # An empty value does not count, but an earlier value of the same name may: the store looks it up.
        keys = (searched[start + 6 : searched.find("\x02", start + 6)] or None) if start >= 0 else ""
        start = searched.rfind(_UNIQ_KEY)
        key = searched[start + 10 : searched.find("\x02", start + 10)] if start >= 0 else ""
        try:
            if key:
                return ((text + self._suffix).encode(), tag, keys, key), True, None, quick
            key = self._make_key()
            return (f"{text}UNIQ_KEY\x01{key}\x02{self._suffix}".encode(), tag, keys, key), True, None, quick
        except UnicodeEncodeError as error:
            raise _not_utf8(error) from None

    def complete_decoded(self, text: str) -> Completed:
        """Do as `complete`, but without a quick hook. Raises RefusalError."""
        properties = self.decode(text)
        key = properties[PropertyName.UNIQ_KEY]
        waits_for_flush = properties.get(PropertyName.WAIT) != "false"
        if any(not is_neutral(name, properties[name]) for name in self._special & properties.keys()):
            return (b"", None, None, key), waits_for_flush, properties, None
        return (_encoded(properties), None, None, key), waits_for_flush, None, None

    def _find_quick(self, searched: str, special: re.Match[str]) -> tuple[QuickHook, str] | None:
        """Return the quick hook of a special property and its value; None if the message must be decoded."""
        start = special.end()
        hook = self._quick.get(special[0][1:-1])
        if (
            hook is None
            or _find_special(searched, start)
            or "\x02REAL_" in searched
            or _TRANSACTION_ID in searched
            # Names and values are as `encode_properties` would write them: none is empty or contains a separator.
            or searched.count("\x01") != searched.count("\x02") - 1
            or "\x01\x02" in searched
            or "\x02\x01" in searched
        ):
            return None
        return hook, searched[start : searched.find("\x02", start)]

    def complete_item(self, data: bytes, shared: bytes) -> StoredProperties:
        """Return the properties of a batch item in their stored form.

        Args:
            data: Properties of the item.
            shared: Properties of the whole batch without a unique key. They end with a separator, unless there are
                none.

        Raises:
            RefusalError: A property asks for a feature that does not exist yet.
        """
        # Without their unique keys, the properties of a batch's items are nearly always the same.
        if data[:9] != _KEY_FIRST or data.find(b"\x02", 9) != 41 or data[-1] != 0x02:
            return self._complete_any(data, shared)
        cached = self._cached.get(data[42:] + shared)
        if cached is not None:
            tag, keys, tail = cached
            return data + tail, tag, keys, str(data[9:41], "utf-8", "replace")
        completed = self._complete_any(data, shared)
        self._cache(data, shared, completed)
        return completed

    def _cache(self, data: bytes, shared: bytes, completed: StoredProperties) -> None:
        stored, tag, keys, _ = completed
        rest, tail = data[42:] + shared, shared + self._suffix_bytes
        # Keep the result only if the text was stored unchanged, tag and keys are known, and there is no second unique
        # key.
        if tag is not None and keys is not None and stored == data + tail and _KEY_FIRST not in rest:
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            if len(rest) <= _CACHED_BYTES_MAX:
                self._cached[rest] = (tag, keys, tail)

    def _complete_any(self, data: bytes, shared: bytes) -> StoredProperties:
        if data and data[-1] != 0x02:
            data += b"\x02"
        searched = b"\x02" + data
        if _find_special_bytes(searched):
            return self._complete_item_slowly(str(data, "utf-8", "replace"), shared)
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

    def shared_by_batch(self, text: str | None) -> tuple[bytes, str | None, bool]:
        """Return a batch's shared properties, its unique key, and whether its producer waits for the disk.

        Each message keeps its own unique key, because its producer knows the message by this id. RocketMQ overwrites
        all of them with the unique key of the batch.

        Raises:
            RefusalError: A property asks for a feature that batches or this broker don't have, or can't be stored.
        """
        if not text:
            return b"", None, True
        properties = self._checked(text)
        self._refuse_special(properties)
        key = properties.pop(PropertyName.UNIQ_KEY, None)
        return _encoded(properties), key, properties.get(PropertyName.WAIT) != "false"

    def decode(self, text: str | None) -> dict[str, str]:
        """Return all properties of a message, also those that the broker adds.

        Raises:
            RefusalError: A property asks for a feature that does not exist yet, or can't be stored.
        """
        properties = self._checked(text or "")
        if PropertyName.UNIQ_KEY not in properties:
            properties[PropertyName.UNIQ_KEY] = self._make_key()
        properties.update(self._added)
        return properties

    def decode_reply(self, text: str | None) -> dict[str, str]:
        """Return the properties of a reply (324, 325), which gets neither UNIQ_KEY nor CLUSTER, as in RocketMQ.

        Raises:
            RefusalError: A property asks for a feature that replies or this broker don't have, or can't be stored.
        """
        properties = self._checked(text or "")
        self._refuse_special(properties)
        for name in (PropertyName.MSG_REGION, PropertyName.TRACE_ON):
            properties[name] = self._added[name]
        return properties

    def _checked(self, text: str) -> dict[str, str]:
        """Return the properties of the producer, without those that the broker writes itself."""
        try:
            properties = decode_properties(text.encode())
        except UnicodeEncodeError as error:
            raise _not_utf8(error) from None
        refuse_unsupported(properties, self._special)
        for name in _BROKER_PROPERTIES:
            properties.pop(name, None)
        return properties

    def _refuse_special(self, properties: Mapping[str, str]) -> None:
        for name in self._special & properties.keys():
            if not is_neutral(name, properties[name]):
                raise RefusalError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"property {name}={properties[name][:64]}: a message of a batch or a reply may not have it",
                )

    def _complete_item_slowly(self, text: str, shared: bytes) -> StoredProperties:
        properties = self.decode(text)
        self._refuse_special(properties)
        for name in self._added:
            del properties[name]
        stored = _encoded(properties) + shared + self._suffix_bytes
        return stored, None, None, properties[PropertyName.UNIQ_KEY]


def _encoded(properties: Mapping[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except InvalidMessageError as error:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _not_utf8(error: UnicodeEncodeError) -> RefusalError:
    return RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"properties can't be written as UTF-8: {error}")
