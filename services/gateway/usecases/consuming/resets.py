"""Resets of groups' offsets while consumers run: reset, undo, and clone from another group.

The gateway plans the move of each queue, and each broker makes the moves of its own queues in one step, all or none. The
brokers refuse what consumers commit from before the reset (docs/internals/broker.md). A broker that can't be reached
keeps its offsets, and the report says so for each of its queues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoAnswerError
from gantry.model.errors import InvalidValueError
from gantry.model.group import MessageModel
from gantry.model.message import MessageQueue
from gantry.model.names import is_system_group
from gantry.remoting.bodies.resets import ResetQueue, ResetQueues, ResetResults
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import BodyError, HeaderError
from gantry.remoting.headers.reset import RESET_QUEUES_MAX, ResetQueuesHeader
from services.gateway.auth.principal import Principal
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.errors import (
    BROKER_UNAVAILABLE,
    CONFLICT,
    NOT_IMPLEMENTED,
    UNDO_REFUSED,
    ProblemError,
    problem_of,
    reserved_name,
)
from services.gateway.schemas.offsets import EARLIEST, LATEST, QueueOffset
from services.gateway.schemas.reading import DuplicateError
from services.gateway.schemas.times import parse_time_ms
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.consuming.offsets import GroupOffset, GroupOffsets
from services.gateway.usecases.consuming.preview import Previews
from services.gateway.usecases.consuming.resetplan import (
    NOT_RESET,
    PLANNED,
    RESET,
    QueueMove,
    ResetReport,
    named_refusals,
    read_token,
    refusal,
    refused_move,
    time_note,
    undo_token,
)
from services.gateway.usecases.metadata import Metadata

_SEARCHES_AT_ONCE: Final = 16


class OffsetResets:
    """Resets offsets. The caller checks the right to the group, and that it exists."""

    def __init__(
        self,
        engine: ClientEngine,
        brokers: Brokers,
        offsets: GroupOffsets,
        consumers: Consumers,
        metadata: Metadata,
    ) -> None:
        self._engine = engine
        self._brokers = brokers
        self._group_offsets = offsets
        self._consumers = consumers
        self._metadata = metadata
        self._offsets = Offsets(engine)
        self._previews = Previews(engine)

    async def reset(
        self,
        group: str,
        topic: str,
        to: str | Sequence[QueueOffset],
        principal: Principal,
        actor: Actor,
        *,
        dry_run: bool,
    ) -> ResetReport:
        """Move a group in the queues of a topic: all of them, or those in `to`.

        Raises:
            InvalidValueError: The target is not valid, or an offset is outside its queue.
            ProblemError: 403: the group is reserved, or the caller may not consume the topic; 404: there is no such
                topic or queue; 409: the group is connected in broadcasting mode; 503: no broker of the topic answers,
                or the change can't be recorded. Nothing was reset.
        """
        self._check_rights(group, topic, principal)
        at_ms = parse_time_ms(to, "/to") if isinstance(to, str) and to not in (EARLIEST, LATEST) else None
        await self._require_no_broadcasting(group)
        found = {one.queue: one for one in await self._group_offsets.of_topic(group, topic)}
        if all(one.state is None for one in found.values()):
            raise ProblemError(BROKER_UNAVAILABLE, f"topic {topic}: none of its brokers answers; nothing was reset")
        if isinstance(to, str):
            moves = await self._plan(list(found.values()), to, at_ms)
        else:
            moves = _planned_list(topic, to, found)
        return await self._carry_out(group, moves, actor, "group.offsets.reset", dry_run=dry_run)

    async def clone(
        self, group: str, source: str, topic: str | None, principal: Principal, actor: Actor, *, dry_run: bool
    ) -> ResetReport:
        """Move a group to the committed offsets of another one, in one topic or in all topics of the other group.

        Raises:
            InvalidValueError: Both groups are the same.
            ProblemError: As `reset`; 404 also if the other group has no committed offsets.
        """
        if source == group:
            raise InvalidValueError("/from_group", source, "is the group itself")
        if topic is not None:
            self._check_rights(group, topic, principal)
        elif is_system_group(group):
            raise reserved_name("group", group)
        await self._require_no_broadcasting(group)
        wanted = await (
            self._group_offsets.of_group(source) if topic is None else self._group_offsets.of_topic(source, topic)
        )
        moves: list[QueueMove] = []
        for name in sorted({one.queue.topic for one in wanted}):
            self._check_rights(group, name, principal)
            own = {one.queue: one for one in await self._group_offsets.of_topic(group, name)}
            moves += [
                _planned(one.queue, own.get(one.queue), one.committed_offset)
                for one in wanted
                if one.queue.topic == name and (one.state is None or one.committed_offset is not None)
            ]
        if not moves:
            raise ProblemError(CONFLICT, f"from_group: {source!r} has no committed offsets; nothing was cloned")
        return await self._carry_out(group, moves, actor, "group.offsets.clone", dry_run=dry_run)

    async def undo(self, group: str, token: str, principal: Principal, actor: Actor) -> ResetReport:
        """Undo a reset: bring back the offsets from before it, if the group has not moved since.

        Raises:
            InvalidValueError: The token is not one of this group.
            ProblemError: 409: the group has consumed since, the queue was reset again, or the reset is too old; 503: a
                broker does not answer. Nothing was changed.
        """
        epochs = read_token(token, group)
        for topic in {queue.topic for queue in epochs}:
            self._check_rights(group, topic, principal)
        moves = [QueueMove(queue, PLANNED) for queue in sorted(epochs)]
        tried = await self._apply(group, moves, epochs, dry_run=True)
        problems = [move for move in tried if move.problem is not None]
        if problems:
            away = next((move.problem for move in problems if move.problem and move.problem.kind is not CONFLICT), None)
            if away is not None:
                raise ProblemError(away.kind, f"{away.detail}; nothing was undone")
            raise ProblemError(UNDO_REFUSED, f"undo: {named_refusals(problems)}", field="/undo")
        await self._record(group, tried, actor, "group.offsets.undo")
        done = await self._apply(group, tried, epochs, dry_run=False)
        return ResetReport(done, undo_token(group, done))

    def _check_rights(self, group: str, topic: str, principal: Principal) -> None:
        if is_system_group(group):
            raise reserved_name("group", group)
        if not principal.is_admin:
            principal.require_consume(topic, group)

    async def _require_no_broadcasting(self, group: str) -> None:
        asked = await self._consumers.connections(group)
        if any(one.message_model is MessageModel.BROADCASTING for one in asked.answers.values() if one.connections):
            raise ProblemError(
                CONFLICT,
                f"group: {group!r} is connected in broadcasting mode, so each instance keeps its own offsets; nothing was reset",
                field="group",
            )

    async def _plan(self, found: Sequence[GroupOffset], to: str, at_ms: int | None) -> list[QueueMove]:
        room = asyncio.Semaphore(_SEARCHES_AT_ONCE)

        async def one(offset: GroupOffset) -> QueueMove:
            state = offset.state
            if state is None:
                return _planned(offset.queue, offset, None)
            if at_ms is None:
                return _planned(offset.queue, offset, state.min_offset if to == EARLIEST else state.max_offset)
            try:
                async with room:
                    target = max(0, await self._offsets.search_offset(offset.queue, at_ms))
                    first_at_ms = await self._offsets.earliest_stored_at_ms(offset.queue)
            except ClientError as error:
                return _planned(offset.queue, offset, None).failed(problem_of(error), is_certain=True)
            note = time_note(
                at_ms,
                target=target,
                min_offset=state.min_offset,
                max_offset=state.max_offset,
                first_stored_at_ms=first_at_ms,
            )
            return replace(_planned(offset.queue, offset, target), note=note)

        return list(await asyncio.gather(*(one(offset) for offset in found if _is_reset_with_all(offset))))

    async def _carry_out(
        self, group: str, moves: Sequence[QueueMove], actor: Actor, action: str, *, dry_run: bool
    ) -> ResetReport:
        filled, is_truncated = await self._previews.fill(moves)
        if dry_run:
            return ResetReport(filled, is_truncated=is_truncated)
        await self._record(group, filled, actor, action)
        done = await self._apply(group, filled, {}, dry_run=False)
        return ResetReport(done, undo_token(group, done), is_truncated)

    async def _record(self, group: str, moves: Sequence[QueueMove], actor: Actor, action: str) -> None:
        """Record in the audit trail which offsets are about to change, and their old values."""
        changes = [move for move in moves if move.outcome == PLANNED]
        if not changes:
            return

        def rows(offset_of: Callable[[QueueMove], int | None]) -> dict[str, Any]:
            return {
                "offsets": [
                    {
                        "topic": move.queue.topic,
                        "broker": move.queue.broker_name,
                        "queue_id": move.queue.queue_id,
                        "offset": None if (offset := offset_of(move)) is None else str(offset),
                    }
                    for move in changes
                ]
            }

        async with self._metadata.transaction() as session:
            before, after = rows(lambda move: move.before), rows(lambda move: move.after)
            AuditRepository(session).record(actor, action, "group", group, before=before, after=after)

    async def _apply(
        self, group: str, moves: Sequence[QueueMove], epochs: Mapping[MessageQueue, int], *, dry_run: bool
    ) -> list[QueueMove]:
        """Make the planned moves, or undo those that have an epoch, with one request for each broker and topic."""
        parts: dict[tuple[str, str], list[QueueMove]] = {}
        for move in moves:
            if move.outcome == PLANNED:
                parts.setdefault((move.queue.broker_name, move.queue.topic), []).append(move)
        work: list[Awaitable[list[QueueMove]]] = []
        for (broker, topic), some in parts.items():
            for at in range(0, len(some), RESET_QUEUES_MAX):
                chunk = some[at : at + RESET_QUEUES_MAX]
                work.append(self._apply_at(broker, topic, group, chunk, epochs, dry_run=dry_run))
        done = {move.queue: move for part in await asyncio.gather(*work) for move in part}
        return [done.get(move.queue, move) for move in moves]

    async def _apply_at(
        self,
        broker: str,
        topic: str,
        group: str,
        moves: Sequence[QueueMove],
        epochs: Mapping[MessageQueue, int],
        *,
        dry_run: bool,
    ) -> list[QueueMove]:
        queues = [
            ResetQueue(
                queue_id=move.queue.queue_id,
                offset=None if move.queue in epochs else move.after,
                undo_epoch=epochs.get(move.queue),
            )
            for move in moves
        ]
        try:
            address = await self._brokers.master(broker)
            answer = await self._engine.call(
                address,
                RequestCode.GANTRY_RESET_QUEUES,
                ResetQueuesHeader(topic=topic, consumer_group=group),
                body=ResetQueues(queues=queues, dry_run=dry_run).encode(),
            )
            results = ResetResults.decode(answer.body_bytes)
        except (ClientError, ProblemError, BodyError, HeaderError) as error:
            is_certain = isinstance(error, ProblemError | BrokerError) or (
                isinstance(error, NoAnswerError) and not error.sent
            )
            return [move.failed(_problem(broker, error), is_certain=is_certain) for move in moves]
        refused = [
            refusal(move.queue, result)
            for move, result in zip(moves, results.queues, strict=True)
            if result.problem is not None
        ]
        if refused:
            return [refused_move(move, refused[0]) for move in moves]
        return [
            replace(
                move,
                outcome=PLANNED if dry_run else RESET,
                before=result.from_offset,
                after=result.offset,
                max_offset=result.max_offset,
                epoch=results.epoch,
            )
            for move, result in zip(moves, results.queues, strict=True)
        ]


def _is_reset_with_all(offset: GroupOffset) -> bool:
    return offset.state is None or offset.state.readable


def _planned(queue: MessageQueue, own: GroupOffset | None, target: int | None) -> QueueMove:
    """Return the planned move of a queue; one without a target is that of a broker that does not answer."""
    state = None if own is None else own.state
    if state is None or target is None:
        problem = ProblemError(
            BROKER_UNAVAILABLE, f"broker {queue.broker_name} does not answer; the queue was not reset"
        )
        return QueueMove(queue, NOT_RESET, problem=problem)
    return QueueMove(queue, PLANNED, before=state.committed_offset, after=target, max_offset=state.max_offset)


def _planned_list(topic: str, to: Sequence[QueueOffset], found: Mapping[MessageQueue, GroupOffset]) -> list[QueueMove]:
    moves: dict[MessageQueue, QueueMove] = {}
    for index, wanted in enumerate(to):
        queue = MessageQueue(topic, wanted.broker, wanted.queue_id)
        own, offset = found.get(queue), wanted.queue_offset
        if queue in moves:
            raise DuplicateError(f"/to/{index}", f"{wanted.broker}/{wanted.queue_id}", "is named twice")
        if own is None:
            raise InvalidValueError(
                f"/to/{index}", f"{wanted.broker}/{wanted.queue_id}", f"is no queue of topic {topic}"
            )
        state = own.state
        if state is not None and not state.min_offset <= offset <= state.max_offset:
            reason = f"is outside the queue, which has {state.min_offset} to {state.max_offset}"
            raise InvalidValueError(f"/to/{index}/offset", wanted.offset, reason)
        moves[queue] = _planned(queue, own, offset)
    return [moves[queue] for queue in sorted(moves)]


def _problem(broker: str, error: Exception) -> ProblemError:
    if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return ProblemError(
            NOT_IMPLEMENTED, f"broker {broker} is not one of Gantry, or an older one: it can't make resets that hold"
        )
    return problem_of(error)
