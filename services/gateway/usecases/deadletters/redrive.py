"""The redrive: a job that sends dead letters again, to their group alone or to their first topic.

No letter is sent twice. A row in Postgres is written before a letter is sent and completed after it. If a gateway dies
in between, the next one finds the row and searches the target topic for the message, which carries the letter's id.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

from gantry.client.errors import Outcome, SendError
from gantry.client.producer import Producer
from gantry.model.names import dlq_topic
from gantry.model.propertyname import PropertyName
from gantry.runtime.clock import Clock
from services.gateway.db.jobs import Job
from services.gateway.db.redrives import Begun, RedriveRepository
from services.gateway.db.repositories import Actor
from services.gateway.errors import UNKNOWN_MESSAGE, UNKNOWN_TOPIC, ProblemError, problem_of
from services.gateway.schemas.deadletters import RedriveRequest
from services.gateway.usecases.deadletters.letters import DeadLetter, DeadLetters, LetterFilter, LetterRange
from services.gateway.usecases.deadletters.redriven import TO_RETRY, fixed_queue_of, message_of
from services.gateway.usecases.deadletters.retrytopics import PopRetryTopics
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import CancelRequestedError, LeaseLostError, Work
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.lookup import Lookup

REDRIVE: Final = "redrive"
SAMPLE_MAX: Final = 10
DRY_RUN_SCANNED_MAX: Final = 10_000
"""Letters that a dry run looks at. If there are more, it does not know how many are selected."""
_BATCH: Final = 32
_ROWS_KEPT: Final = timedelta(days=365)


class RedriveArguments(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments of a redrive, as its job keeps them.

    Attributes:
        group: The group.
        to: `retry`: the group alone gets the messages; `origin`: every group of their topic.
        rate_per_s: Limit of messages a second.
        ranges: Letters to look at. Letters that die later are not among them.
        topic, tag: Topic and tag that a letter must have; None: any.
    """

    group: str
    to: str
    rate_per_s: int
    ranges: list[LetterRange]
    topic: str | None = None
    tag: str | None = None

    @property
    def filter(self) -> LetterFilter:
        """The letters to take of the ranges."""
        return LetterFilter(topic=self.topic, tag=self.tag)

    @property
    def total(self) -> int | None:
        """The number of letters with those that were sent before, or None if it is unknown before they are read."""
        if self.topic is not None or self.tag is not None:
            return None
        return sum(one.end - one.start for one in self.ranges)

    @property
    def piece(self) -> int:
        """The number of letters that are sent between two saves: a slow redrive tells every second how far it is."""
        return min(_BATCH, self.rate_per_s)


class RedrivePlace(msgspec.Struct, frozen=True):
    """The place of a redrive.

    Attributes:
        index: Index of a range.
        offset: Offset of its next letter; None: its start.
        left_out: Number of letters so far that other jobs have sent, or are sending.
    """

    index: int = 0
    offset: int | None = None
    left_out: int = 0


class DryRun(msgspec.Struct, frozen=True):
    """The letters that a redrive would send.

    Attributes:
        selected: Number of letters; None if there are too many to look at.
        sample: The first of them.
    """

    selected: int | None
    sample: Sequence[DeadLetter]


class Redrives:
    """Plans redrives. The caller has checked the rights."""

    def __init__(self, letters: DeadLetters, lookup: Lookup, metadata: Metadata, jobs: Jobs) -> None:
        self._letters = letters
        self._lookup = lookup
        self._metadata = metadata
        self._jobs = jobs

    async def start(self, group: str, wanted: RedriveRequest, actor: Actor) -> Job:
        """Queue a redrive.

        Raises:
            InvalidValueError: A value of the request is not valid.
            ProblemError: 404: there is no such letter; 429: too many jobs; 503: Postgres or a broker is unavailable.
        """
        arguments = await self._plan(group, wanted)
        return await self._jobs.create(REDRIVE, msgspec.to_builtins(arguments), actor)

    async def try_out(self, group: str, wanted: RedriveRequest) -> DryRun:
        """Return what a redrive would send. Raises as `start`."""
        arguments = await self._plan(group, wanted)
        selected, scanned = 0, 0
        sample: list[DeadLetter] = []
        for part in arguments.ranges:
            offset = part.start
            while offset < part.end:
                piece = msgspec.structs.replace(part, start=offset)
                letters, offset = await self._letters.read(group, piece, count_max=_BATCH)
                matching = [letter for letter in letters if arguments.filter.matches(letter)]
                unsent = await self._unsent(group, matching)
                selected += len(unsent)
                sample += unsent[: SAMPLE_MAX - len(sample)]
                scanned += len(letters)
                if scanned > DRY_RUN_SCANNED_MAX:
                    return DryRun(None, sample)
        return DryRun(selected, sample)

    async def _unsent(self, group: str, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        if not letters:
            return []
        async with self._metadata.transaction() as session:
            sent = await RedriveRepository(session).sent(group, [letter.record.stored_id for letter in letters])
        return [letter for letter in letters if letter.record.stored_id not in sent]

    async def _plan(self, group: str, wanted: RedriveRequest) -> RedriveArguments:
        wanted.check()
        if wanted.filter is None:
            assert wanted.message_ids is not None
            found = [await self._ranges_of(group, message_id) for message_id in dict.fromkeys(wanted.message_ids)]
            # A stored id and a message id may name the same letter.
            ranges = list(dict.fromkeys(one for ranges_of_id in found for one in ranges_of_id))
            return RedriveArguments(group, wanted.to, wanted.rate_per_s, ranges)
        chosen = wanted.filter
        from_ms, to_ms = chosen.times_ms()
        ranges = await self._letters.ranges(group, LetterFilter(from_ms=from_ms, to_ms=to_ms))
        return RedriveArguments(group, wanted.to, wanted.rate_per_s, ranges, topic=chosen.topic, tag=chosen.tag)

    async def _ranges_of(self, group: str, message_id: str) -> list[LetterRange]:
        """Return the places of a letter: one for a stored id. A message that died again has several with its id."""
        topic = dlq_topic(group)
        try:
            found = await self._lookup.all_by_id(message_id, topic)
        except ProblemError as error:
            if error.kind not in (UNKNOWN_TOPIC, UNKNOWN_MESSAGE):
                raise
            raise _no_letter(group, message_id) from None
        if any(record.topic != topic for record, _ in found):
            raise _no_letter(group, message_id)
        return [
            LetterRange(broker, record.queue_id, record.queue_offset, record.queue_offset + 1)
            for record, broker in found
        ]


def _no_letter(group: str, message_id: str) -> ProblemError:
    return ProblemError(
        UNKNOWN_MESSAGE, f"message_ids: group {group} has no dead letter {message_id!r}", field="/message_ids"
    )


class RedriveJob:
    """The work of a redrive."""

    name = REDRIVE

    def __init__(
        self,
        letters: DeadLetters,
        lookup: Lookup,
        producer: Producer,
        metadata: Metadata,
        *,
        retry_topics: PopRetryTopics,
        clock: Clock,
    ) -> None:
        self._letters = letters
        self._lookup = lookup
        self._retry_topics = retry_topics
        self._producer = producer
        self._metadata = metadata
        self._clock = clock

    async def run(self, work: Work) -> None:
        """Send the letters, from the place that the job has reached. Raises ProblemError, ClientError."""
        arguments = msgspec.convert(work.job.arguments, RedriveArguments)
        place = msgspec.convert(work.job.progress or {}, RedrivePlace)
        pace = _Pace(arguments.rate_per_s, self._clock)
        tally = _Tally(work.job.done, work.job.failed, place.left_out)

        async def save() -> None:
            total = None if arguments.total is None else arguments.total - tally.left_out
            await work.save(msgspec.to_builtins(place), done=tally.done, failed=tally.failed, total=total)

        try:
            for index in range(place.index, len(arguments.ranges)):
                part = arguments.ranges[index]
                offset = part.start if index != place.index or place.offset is None else place.offset
                while offset < part.end:
                    piece = msgspec.structs.replace(part, start=offset)
                    letters, offset = await self._letters.read(arguments.group, piece, count_max=_BATCH)
                    wanted = [letter for letter in letters if arguments.filter.matches(letter)]
                    for at in range(0, len(wanted), arguments.piece):
                        sent = wanted[at : at + arguments.piece]
                        await self._send_all(work, arguments, sent, pace, tally)
                        place = RedrivePlace(index, sent[-1].record.queue_offset + 1, tally.left_out)
                        await save()
                    reached = RedrivePlace(index, offset, tally.left_out)
                    if reached != place:
                        place = reached
                        await save()
        except asyncio.CancelledError:
            # A job that was cancelled does not continue, so the letters of its last batch are counted here.
            if work.job.is_cancel_requested:
                with suppress(ProblemError, LeaseLostError, CancelRequestedError):
                    await save()
            raise
        finally:
            work.note = tally.note
        async with self._metadata.transaction() as session:
            await RedriveRepository(session).delete_old(_ROWS_KEPT)

    async def _send_all(
        self,
        work: Work,
        arguments: RedriveArguments,
        letters: Sequence[DeadLetter],
        pace: "_Pace",
        tally: "_Tally",
    ) -> None:
        """Send letters that this job may send, and count them. Letters that another job has sent are left out."""
        group = arguments.group
        for queue in {queue for letter in letters if (queue := fixed_queue_of(letter, group=group, to=arguments.to))}:
            await self._retry_topics.ensure(queue.topic, queue.broker_name)
        async with self._metadata.transaction() as session:
            begun = await RedriveRepository(session).begin(
                group, [letter.record.stored_id for letter in letters], work.job.id
            )
        sent: list[str] = []
        refused: list[str] = []
        stored_id = ""
        try:
            for letter in letters:
                stored_id = letter.record.stored_id
                state = begun.get(stored_id)
                if state is None:
                    tally.left_out += 1
                    continue
                if state is not Begun.SENT and not (
                    state is Begun.UNCERTAIN and await self._was_sent(arguments, letter)
                ):
                    await pace.wait()
                    reason = await _to_its_end(self._send(arguments, letter), partial(tally.add, sent, stored_id))
                    if reason is not None:
                        tally.refuse(refused, stored_id, reason)
                    continue
                tally.add(sent, stored_id)
        except SendError as error:
            if error.outcome is Outcome.NOT_STORED:
                refused.append(stored_id)
            raise
        finally:
            # A gateway that stops still writes what it knows. Otherwise the next one has to search for the messages.
            await asyncio.shield(self._settle(group, sent, refused))

    async def _settle(self, group: str, sent: Sequence[str], refused: Sequence[str]) -> None:
        if not sent and not refused:
            return
        async with self._metadata.transaction() as session:
            repository = RedriveRepository(session)
            await repository.finish(group, sent)
            await repository.give_up(group, refused)

    async def _send(self, arguments: RedriveArguments, letter: DeadLetter) -> str | None:
        """Send one letter; return why it can never be sent, or None. Raises SendError if it may be sent later."""
        message = message_of(letter, group=arguments.group, to=arguments.to)
        if message is None:
            return "the letter does not say its topic"
        key = message.properties.get(PropertyName.SHARDING_KEY) if arguments.to != TO_RETRY else None
        try:
            queue = fixed_queue_of(letter, group=arguments.group, to=arguments.to)
            await self._producer.send(message, queue=queue, ordering_key=key)
        except SendError as error:
            if error.outcome is Outcome.NOT_STORED and not error.retryable:
                return f"topic {message.topic}: {problem_of(error.cause).detail}"
            raise
        return None

    async def _was_sent(self, arguments: RedriveArguments, letter: DeadLetter) -> bool:
        """Return whether the target topic has the message of a letter."""
        message = message_of(letter, group=arguments.group, to=arguments.to)
        if message is None or message.unique_key is None:
            return False
        stored = await self._lookup.same_id(message.topic, message.unique_key)
        return any(record.properties.get(PropertyName.REDRIVEN_FROM) == letter.record.stored_id for record in stored)


class _Tally:
    """The numbers of a redrive.

    Attributes:
        done: Number of letters that were sent.
        failed: Number of letters that can't be sent.
        left_out: Number of letters that other jobs have sent, or are sending.
        note: Why the last of those that failed can't be sent.
    """

    def __init__(self, done: int, failed: int, left_out: int) -> None:
        self.done = done
        self.failed = failed
        self.left_out = left_out
        self.note: str | None = None

    def add(self, sent: list[str], stored_id: str) -> None:
        """Count a letter that was sent."""
        sent.append(stored_id)
        self.done += 1

    def refuse(self, refused: list[str], stored_id: str, reason: str) -> None:
        """Count a letter that can't be sent."""
        refused.append(stored_id)
        self.failed += 1
        self.note = f"{self.failed} letters can't be sent; the last one: {reason}"


async def _to_its_end(send: Coroutine[Any, Any, str | None], done: Callable[[], None]) -> str | None:
    """Return the result of `_send`, and call `done` if the letter was sent, even if the job is cancelled meanwhile."""
    sending = asyncio.ensure_future(send)
    try:
        reason = await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending})
        if sending.exception() is None and sending.result() is None:
            done()
        raise
    if reason is None:
        done()
    return reason


class _Pace:
    """Waits so that at most a number of messages a second are sent."""

    def __init__(self, rate_per_s: int, clock: Clock) -> None:
        self._each_ms = 1_000 / rate_per_s
        self._clock = clock
        self._next_ms = float(clock.monotonic_ms())

    async def wait(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._next_ms > now_ms:
            await asyncio.sleep((self._next_ms - now_ms) / 1_000)
        self._next_ms = max(self._next_ms, now_ms) + self._each_ms
