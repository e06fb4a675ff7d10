"""Messages that a topic's duplicate window has already: they are not stored again, and get the first answer again.

The answer waits until the first message is as durable as a message that is stored now. Otherwise a power failure could
take a message away whose second send was acknowledged.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gantry.model.message import find_property
from gantry.model.propertyname import PropertyName
from gantry.model.recallhandle import RecallHandle, encode_recall_handle
from gantry.remoting.aio.channel import Channel, Reply
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import SendMessageHeader
from gantry.remoting.headers.send import SentPosition, encode_positions
from gantry.remoting.replies import SendReplies
from gantry.runtime.digits import parse_digits
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.duplicates.keytable import HALF_SECOND, Place
from services.broker.duplicates.window import DuplicateWindow
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.processors.sendparts import OUTCOME_CODES
from services.broker.refusal import RefusalError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import BatchMessage, BatchPutResult, PutResult

_KEY_SHOWN_MAX: Final = 64


class Answer(NamedTuple):
    """The fields of an answer. A batch has all its ids, separated by commas, and the position of its first message."""

    message_id: str
    queue_id: int
    queue_offset: int
    unique_key: str
    recall_handle: str | None = None
    positions: str | None = None


class BatchPlan:
    """Which messages of a batch are stored.

    Raises:
        RefusalError: A message has the key of a transaction.

    Attributes:
        new: Indexes of the messages that are stored.
    """

    __slots__ = ("_digests", "_known", "_same", "_window", "new")

    def __init__(self, window: DuplicateWindow, items: Sequence[BatchMessage]) -> None:
        self._window = window
        self._digests = digests = [window.digest(item[-1] or "") for item in items]
        self._known: dict[int, Place] = {}
        # A message whose key an earlier one in the same batch has → the index of that one.
        self._same: dict[int, int] = {}
        self.new: list[int] = []
        firsts: dict[bytes, int] = {}
        find = window.find
        for index, digest in enumerate(digests):
            first = firsts.setdefault(digest, index)
            if first != index:
                self._same[index] = first
            elif (place := find(digest)) is not None:
                _refuse_other_kind(window, place, items[index][-1] or "", is_half=False)
                self._known[index] = place
            else:
                self.new.append(index)

    @property
    def has_duplicates(self) -> bool:
        """Whether a message is not stored."""
        return len(self.new) < len(self._digests)

    def add(self, queue_id: int, stored: BatchPutResult) -> None:
        """Add the keys of the messages that were stored."""
        add, digests = self._window.table.add, self._digests
        for number, (index, at) in enumerate(zip(self.new, stored.physical_offsets, strict=True)):
            add(digests[index], at, queue_id, stored.queue_offset + number, stored.stored_at_ms)

    def places(self, queue_id: int, stored: BatchPutResult | None) -> list[tuple[Place, bool]]:
        """Return the place of each message, and whether it was stored before. `stored` is None if none was new."""
        self._window.replayed += len(self._digests) - len(self.new)
        places: list[tuple[Place, bool]] = [(place, True) for place in map(self._known.get, range(len(self._digests)))]  # type: ignore[misc]
        if stored is not None:
            for number, (index, at) in enumerate(zip(self.new, stored.physical_offsets, strict=True)):
                places[index] = (Place(at, queue_id, stored.queue_offset + number, 0), False)
        for index, first in self._same.items():
            places[index] = (places[first][0], True)
        return places


class Replays:
    """Answers sends whose message is known.

    Attributes:
        replies: Makes the replies of sends.
    """

    def __init__(
        self,
        waiters: DurabilityWaiters,
        store: MessageStore,
        replies: SendReplies,
        *,
        id_prefix: str,
        broker_name: str,
    ) -> None:
        self.replies = replies
        self._waiters = waiters
        self._store = store
        self._id_prefix = id_prefix
        self._broker_name = broker_name

    def single(  # noqa: PLR0917 - one caller.
        self,
        channel: Channel,
        request: RemotingCommand,
        header: SendMessageHeader,
        window: DuplicateWindow,
        place: Place,
        unique_key: str,
        waits_for_flush: bool,
    ) -> Reply:
        """Answer a send of one message with the answer of the first one.

        Raises:
            RefusalError: The first one is the half message of a transaction, and this one is not, or vice versa.
        """
        _refuse_other_kind(window, place, unique_key, is_half=is_half_message(header.properties))
        window.replayed += 1
        handle = None
        if place.delivery_second not in {0, HALF_SECOND}:
            at_ms = place.delivery_second * SECOND_MS + 1
            handle = encode_recall_handle(RecallHandle(window.topic, self._broker_name, at_ms, unique_key))
        answer = Answer(self._stored_id(place), place.queue_id, place.queue_offset, unique_key, handle)
        return self._answer(channel, request, answer, place.physical_offset, waits_for_flush=waits_for_flush)

    def batch(
        self,
        channel: Channel,
        request: RemotingCommand,
        places: Sequence[tuple[Place, bool]],
        unique_key: str,
        *,
        waits_for_flush: bool,
    ) -> Reply:
        """Answer a batch with the place of each message. Clients of RocketMQ read the ids and the first position."""
        first, _ = places[0]
        positions = [SentPosition(place.queue_id, place.queue_offset, is_known) for place, is_known in places]
        ids = ",".join([self._stored_id(place) for place, _ in places])
        answer = Answer(ids, first.queue_id, first.queue_offset, unique_key, positions=encode_positions(positions))
        last = max(place.physical_offset for place, _ in places)
        return self._answer(channel, request, answer, last, waits_for_flush=waits_for_flush)

    def _stored_id(self, place: Place) -> str:
        return f"{self._id_prefix}{place.physical_offset:016X}"

    def _answer(
        self, channel: Channel, request: RemotingCommand, answer: Answer, last: int, *, waits_for_flush: bool
    ) -> Reply:
        """Reply when the record that starts at `last` is durable. Its own sender has asked for the flush."""
        if request.is_one_way:
            self._waiters.appended()
            return None
        if last < self._store.confirm_offset:
            return self._command(request, answer, 0)
        request.drop_content()
        # The ends of waits ascend, so this one is the present end of the log.
        end = self._store.max_physical_offset
        self._waiters.wait(end, self._reply, channel, request, answer, waits_for_flush=waits_for_flush)
        return None

    def _reply(self, outcome: Outcome, channel: Channel, request: RemotingCommand, answer: Answer) -> None:
        if outcome is Outcome.NOT_WRITTEN:
            remark = "the message could not be written; whether it is stored is unknown"
            channel.reply(request, RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        code = 0 if outcome is Outcome.DURABLE else int(OUTCOME_CODES[outcome])
        channel.reply(request, self._command(request, answer, code))

    def _command(self, request: RemotingCommand, answer: Answer, code: int) -> RemotingCommand:
        message_id, queue_id, queue_offset, unique_key, handle, positions = answer
        return self.replies.command(
            request,
            message_id,
            queue_id,
            queue_offset,
            unique_key,
            code=code,
            recall_handle=handle,
            is_replayed=positions is None,
            positions=positions,
        )


def is_half_message(properties: str | None) -> bool:
    """Return whether a message with these properties is sent as the half message of a transaction."""
    value = find_property((properties or "").encode("utf-8", "replace"), PropertyName.TRAN_MSG.encode())
    return value is not None and value.lower() == "true"


def replaces(properties: Mapping[str, str] | None, known: Place) -> bool:
    """Return whether a special message with these properties takes the place of the known one, which is recalled next."""
    if properties is None:
        return False
    second = parse_digits(properties.get(PropertyName.REPLACES_SECOND, ""), HALF_SECOND - 1)
    return bool(second) and second == known.delivery_second


def _refuse_other_kind(window: DuplicateWindow, place: Place, key: str, *, is_half: bool) -> None:
    """Refuse a message if its key belongs to a message of the other kind: neither could stand for the other."""
    if (place.delivery_second == HALF_SECOND) is not is_half:
        kinds = ("a message", "a transaction") if is_half else ("a transaction", "a message")
        raise RefusalError(
            ResponseCode.GANTRY_KEY_IN_USE,
            f"UNIQ_KEY={key[:_KEY_SHOWN_MAX]}: the duplicate window of topic {window.topic} has this key for {kinds[0]}, "
            f"so it can't be the key of {kinds[1]}; the message is not stored",
        )


def note_special(window: DuplicateWindow, digest: bytes, stored: PutResult, queue_id: int, second: int) -> None:
    """Add the key of a message that was stored in its topic or that waits elsewhere.

    Args:
        window: Window of the topic that the client named.
        digest: Digest of the key.
        stored: Place of the message.
        queue_id: Queue that the client named.
        second: As in Place.
    """
    window.table.add(digest, stored.physical_offset, queue_id, stored.queue_offset, stored.stored_at_ms, second)
