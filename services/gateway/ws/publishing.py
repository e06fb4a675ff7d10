"""The publishes of a stream in flight: each is a task, and the memory of publishes and answers is limited.

Once a message is stored, its result must be sent to the client. So room for the answer is reserved before any message
is sent: from the key (`unsent_bytes`, beyond which a publish is rejected and nothing of it is stored), and from the
stream, which is not read beyond its limit until answers have been sent. The memory that publishes hold counts for the
key as well (inbound.py).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.runtime.tasks import TaskSet
from services.gateway.errors import NOT_STORED, ProblemError, problem_of
from services.gateway.limits import RESULT_BYTES
from services.gateway.quotas import Quota
from services.gateway.schemas.outgoing import Item, check_count, read_items
from services.gateway.turns import MESSAGE_BYTES, Turn
from services.gateway.views.sends import outcome_counts, result_views
from services.gateway.ws.effects import Effect, Publish
from services.gateway.ws.inbound import Charge
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.ports import Publisher
from services.gateway.ws.session import Session

# The frame, the bodies of its messages, and the commands that carry them to brokers.
PENDING_FACTOR: Final = 3
# Messages that are decoded in one turn of the loop: about 1 ms of work.
_DECODED_AT_ONCE_MAX: Final = 250


TakeSend = Callable[[int, int], None]
"""Counts messages, and the bytes of their frame, for the key. Raises ProblemError (429)."""


class PublishTasks:
    """The publishes of one stream.

    Concurrency: one event loop.
    """

    def __init__(
        self,
        session: Session,
        tasks: TaskSet,
        publisher: Publisher,
        *,
        apply: Callable[[Iterable[Effect]], None],
        unsent: Quota,
        key_id: str,
        charge: Charge,
        take_send: TakeSend,
        turn: Turn,
        limits: StreamLimits,
        is_text: bool,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._publisher = publisher
        self._apply = apply
        self._unsent = unsent
        self._key_id = key_id
        self._charge = charge
        self._take_send = take_send
        self._turn = turn
        self._limits = limits
        self._is_text = is_text
        self._frame_bytes = 0
        self._answer_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Return whether one more frame may be read."""
        return self._room.is_set()

    async def wait_for_room(self) -> None:
        """Wait until one more frame may be read."""
        await self._room.wait()

    def begin(self, publish: Publish) -> None:
        """Start a publish, or answer that there is no room for its answer."""
        answer_bytes = len(publish.messages) * RESULT_BYTES
        try:
            self._take_send(len(publish.messages), publish.size_bytes)
            self._unsent.take(self._key_id, answer_bytes)
        except ProblemError as problem:
            problem.outcome = NOT_STORED
            self._apply(self._session.publishes.failed(publish.frame_id, problem))
            return
        self._hold(publish.size_bytes, answer_bytes)

        def release(_: object) -> None:
            # This also runs for a task that was cancelled before it began. The frame with the answer is counted
            # separately.
            self._unsent.give(self._key_id, answer_bytes)
            self._hold(-publish.size_bytes, -answer_bytes)

        self._tasks.spawn(self._publish(publish)).add_done_callback(release)

    def _hold(self, frame_bytes: int, answer_bytes: int) -> None:
        """Count bytes that publishes and their answers hold; negative numbers release them."""
        limits = self._limits
        self._charge.add_pending(frame_bytes * PENDING_FACTOR)
        self._frame_bytes += frame_bytes
        self._answer_bytes += answer_bytes
        if (
            self._frame_bytes > limits.publishes_pending_bytes_max
            or self._answer_bytes > limits.publish_answers_bytes_max
        ):
            self._room.clear()
        else:
            self._room.set()

    async def _publish(self, publish: Publish) -> None:
        publishes = self._session.publishes
        try:
            self._publisher.check_topic(publish.topic)
            items = await self._decode(publish.messages)
            report = await self._publisher.send_many(publish.topic, items, turn=self._turn)
        except (ClientError, ProblemError, InvalidValueError) as error:
            self._apply(publishes.failed(publish.frame_id, problem_of(error, outcome=NOT_STORED)))
            return
        await self._turn(len(items) * MESSAGE_BYTES)
        views = result_views(report, self._session.name, binary=not self._is_text)
        self._apply(publishes.done(publish.frame_id, views, outcome_counts(report)))

    async def _decode(self, messages: Sequence[msgspec.Raw]) -> list[Item]:
        """Return the messages; an invalid one is its error. Raises InvalidValueError: there is none, or too many."""
        check_count(messages)
        items: list[Item] = []
        for first in range(0, len(messages), _DECODED_AT_ONCE_MAX):
            part = messages[first : first + _DECODED_AT_ONCE_MAX]
            await self._turn(len(part) * MESSAGE_BYTES)
            items += read_items(part, packed=not self._is_text, first=first)
        return items
