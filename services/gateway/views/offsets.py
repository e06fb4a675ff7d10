"""The JSON form of groups' offsets, of commits and of resets."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.usecases.consuming.offsets import CommitResult, GroupOffset
from services.gateway.usecases.consuming.resetplan import QueueMove, ResetReport
from services.gateway.usecases.reading.messages import ReadMessage
from services.gateway.views.messages import message_view
from services.gateway.views.optional import offset_view


def group_offset_view(offset: GroupOffset) -> dict[str, Any]:
    """Return a group's offset in one queue in the contract's form."""
    queue, state = offset.queue, offset.state
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "committed_offset": offset_view(offset.committed_offset),
        "min_offset": None if state is None else str(state.min_offset),
        "max_offset": None if state is None else str(state.max_offset),
        "lag": offset_view(offset.lag),
    }


def commits_view(results: Sequence[CommitResult], request_id: str) -> dict[str, Any]:
    """Return the results of commits in the contract's form; `request_id` is for the problems."""
    refused = sum(result.problem is not None for result in results)
    return {
        "results": [_result_view(result, request_id) for result in results],
        "committed": len(results) - refused,
        "refused": refused,
    }


def reset_view(report: ResetReport, request_id: str) -> dict[str, Any]:
    """Return the report of a reset in the contract's form; `request_id` is for the problems."""
    return {
        "items": [_move_view(move, request_id) for move in report.moves],
        "messages": offset_view(report.messages),
        "undo": report.undo,
        "truncated": report.is_truncated,
    }


def _move_view(move: QueueMove, request_id: str) -> dict[str, Any]:
    view = {
        "topic": move.queue.topic,
        "broker": move.queue.broker_name,
        "queue_id": move.queue.queue_id,
        "from": offset_view(move.before),
        "to": offset_view(move.after),
        "messages": offset_view(move.messages),
        "first": _message(move.first),
        "last": _message(move.last),
        "note": move.note,
        "outcome": move.outcome,
    }
    return view if move.problem is None else {**view, "problem": move.problem.to_dict(request_id)}


def _message(message: ReadMessage | None) -> dict[str, Any] | None:
    return None if message is None else message_view(message)


def _result_view(result: CommitResult, request_id: str) -> dict[str, Any]:
    commit: dict[str, Any] = msgspec.to_builtins(result.commit)
    if result.problem is None:
        return {**commit, "outcome": "committed"}
    return {**commit, "outcome": "refused", "problem": result.problem.to_dict(request_id)}
