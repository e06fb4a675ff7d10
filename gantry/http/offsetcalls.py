"""The calls that reset offsets of groups, as values."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gantry.http.call import JSON, Call, json_of, path_of
from gantry.http.offsetresults import OffsetReset
from gantry.http.results import OffsetCommit


def reset_offsets(group: str, topic: str, to: str | Sequence[OffsetCommit], *, dry_run: bool) -> Call[OffsetReset]:
    """Reset the offsets of a group."""
    target: Any = to
    if not isinstance(to, str):
        target = [{"broker": one.broker, "queue_id": one.queue_id, "offset": str(one.offset)} for one in to]
    return _posted(group, "reset", {"topic": topic, "to": target, "dry_run": dry_run})


def undo_offset_reset(group: str, undo: str) -> Call[OffsetReset]:
    """Undo a reset."""
    return _posted(group, "undo", {"undo": undo})


def clone_offsets(group: str, from_group: str, *, topic: str | None, dry_run: bool) -> Call[OffsetReset]:
    """Set the offsets of a group to those of another group."""
    return _posted(group, "clone", {"from_group": from_group, "topic": topic, "dry_run": dry_run})


def _posted(group: str, action: str, body: Mapping[str, Any]) -> Call[OffsetReset]:
    path = f"{path_of('groups', group, 'offsets')}:{action}"
    content = msgspec.json.encode(body)
    return Call("POST", path, json_of(OffsetReset), content=content, headers={"content-type": JSON})
