"""A message that the broker is about to store, with decoded properties.

The hot path of a send keeps properties encoded. Special messages take this form: a send hook changes where they are
stored, and features append messages of their own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gantry.model.errors import InvalidMessageError
from gantry.model.message import encode_properties
from gantry.model.propertyname import PropertyName
from gantry.remoting.headers.send import SendMessageHeader
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutResult, PutStatus


@dataclass(slots=True)
class NewMessage:
    """A message and the queue that it is stored in. Send hooks change it in place.

    Attributes:
        topic: Topic under which the message is stored.
        queue_id: Queue of this topic.
        body: Body as it is stored, perhaps compressed.
        properties: All properties, also those that the broker adds.
        born_at_ms: Time of the producer's clock.
        born_host: Packed address of the producer.
        flag: Flag of the application.
        sys_flag: System flag; the store sets the bits of the hosts.
        reconsume_times: Number of failed deliveries so far.
        prepared_transaction_offset: Physical offset of the half message, for a committed message.
        max_reconsume_times: Limit of failed deliveries that a client gives, or None.
        recall_handle: Text by which the sender can recall the message; the reply has it. None if it can't.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_at_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    max_reconsume_times: int | None = None
    recall_handle: str | None = None

    def put_into(self, store: MessageStore) -> PutResult:
        """Store the message. Durability: as for `MessageStore.put`."""
        try:
            properties = encode_properties(self.properties)
        except InvalidMessageError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        return store.put(
            self.topic,
            self.queue_id,
            self.body,
            properties,
            tag=self.properties.get(PropertyName.TAGS, ""),
            keys=self.properties.get(PropertyName.KEYS, ""),
            unique_key=self.properties.get(PropertyName.UNIQ_KEY, ""),
            born_at_ms=self.born_at_ms,
            born_host=self.born_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


class TopicNeededError(Exception):
    """A message needs a topic that does not exist, or is not on disk yet. `make` creates it; it raises RefusalError."""

    def __init__(self, make: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a topic is needed")
        self.make = make


QuickStored = Callable[
    [SendMessageHeader, int, bytes, tuple[bytes, str | None, str | None, str], bytes, int, int, int], None
]
"""Takes note of a message that a quick hook has placed, when it is appended.

It takes the header of the send, the queue that was chosen for the message, the body, the stored properties with tag,
keys and unique key, the packed address of the producer, the sysFlag, the physical offset and the queue offset.
"""
QuickPlace = tuple[str, int, bytes, QuickStored | None, int | None]
"""Topic and queue in which a message is stored, encoded properties that are added at the end of its own, a call when
it is appended, or None, and for the schedule topic the delay in ms, else None."""
QuickHook = Callable[[str, int, str, str, str], QuickPlace | None]
"""Does for one property what all send hooks together do, if nothing else about the message is special.

A send calls it instead of the send hooks, with encoded properties: decoding and encoding them takes longer than a whole
plain send. It takes the topic of the message, its queue, the value of the property, all properties of the producer,
encoded, and the unique key. It returns None if the send hooks must decide, and changes nothing then. A message of a
transaction loses the transaction bits of its sysFlag.
"""

SendHook = Callable[[NewMessage], None]
"""Changes a special message of a client before it is stored, or leaves it alone.

A hook leaves a message alone that an earlier hook has put into the half topic. A commit passes the hooks with the message
that it stores.

A message is special if it has a property of a feature, or if it goes to a retry topic with `reconsume_times`. Hooks run
in the order of the features. A hook raises RefusalError if the message may not be stored, and TopicNeededError if a topic must be
created first; then all hooks run again.
"""
