"""The state of a message in a group, told from the group's committed offsets, its retries and its dead letters. Pure.

A committed offset behind a message means that the group is done with this delivery: it consumed the message, left it out
because of its filter, or sent it back, which leaves a record in its retry topic.
"""

from collections.abc import Sequence

from gantry.model.propertyname import PropertyName
from gantry.model.tracedata import SubAfter, SubBefore
from services.gateway.schemas.times import format_time
from services.gateway.usecases.lives.events import (
    ended_at_ms,
    is_deletion,
    is_recalled,
    retry_group,
    wait_of,
)
from services.gateway.usecases.lives.facts import Copy, Event, Facts, GroupFacts, GroupState, Kind, State


def states_of(facts: Facts, events: Sequence[Event]) -> list[GroupState]:
    """Return the state of each group; none if the message was rolled back or recalled, because no group gets it."""
    if not facts.stored and any(event.kind in (Kind.ROLLED_BACK, Kind.EXPIRED) for event in events):
        return []
    waiting = [copy for copy in facts.waiting if not is_deletion(copy) and retry_group(copy) is None]
    if not facts.stored and waiting and all(is_recalled(copy, facts.waiting) for copy in waiting):
        return []
    return [_state(facts, group) for group in sorted(facts.groups, key=lambda group: group.group)]


def _state(facts: Facts, group: GroupFacts) -> GroupState:
    def told(state: State, since_ms: int | None, why: str) -> GroupState:
        return GroupState(group.group, state, since_ms, why)

    retry = _newest(group.retries)
    back = _newest([copy for copy in facts.waiting if retry_group(copy) == group.group])
    letter = _newest([copy for copy in group.letters if not _is_redriven(copy, facts, group)])
    if back is not None and _is_waiting(back, group) and _is_newer(back, letter):
        detail = f"delivery {back.record.reconsume_times} failed; the next one waits: {wait_of(back)}"
        return told(State.RETRYING, back.record.stored_at_ms, detail)
    if letter is not None and _is_newer(letter, retry):
        failures = letter.record.reconsume_times
        count = f" after {failures} failed deliveries" if failures else ""
        return told(State.DEAD, letter.record.stored_at_ms, f"in the dead-letter queue{count}")
    lost = _lost_redrive(facts, group)
    if lost is not None:
        return lost
    if group.is_broadcasting:
        return told(State.UNKNOWN, None, "the group is broadcasting: its instances keep their offsets themselves")
    if retry is not None and _is_newer(retry, _newest(facts.stored)):
        return _delivery_state(facts, group, [retry], is_retry=True)
    if facts.stored:
        return _delivery_state(facts, group, facts.stored, is_retry=False)
    if facts.halves or facts.waiting:
        first = min((*facts.halves, *facts.waiting), key=lambda copy: copy.record.stored_at_ms)
        reason = "its transaction is open" if facts.halves else "it waits for its time"
        return told(State.PENDING, first.record.stored_at_ms, f"consumers can't read the message yet: {reason}")
    traced = _traced_end(facts, group)
    if traced is not None:
        return traced
    return told(State.UNKNOWN, None, "the record of the message was not found, so offsets prove nothing")


def _delivery_state(facts: Facts, group: GroupFacts, copies: Sequence[Copy], *, is_retry: bool) -> GroupState:
    """Return the state of deliveries that the group can read: all records of the topic, or the last retry."""

    def told(state: State, since_ms: int | None, why: str) -> GroupState:
        return GroupState(group.group, state, since_ms, why)

    whys: list[str] = []
    for copy in copies:
        record, queue = copy.record, copy.queue
        place = f"offset {record.queue_offset} of queue {queue.queue_id} on {queue.broker_name}"
        taken = group.taken.get((queue, record.queue_offset))
        if taken is not None:
            until = format_time(taken.visible_at_ms)
            why = f"taken with a receipt and not acknowledged; invisible until {until}"
            return told(State.IN_FLIGHT, taken.at_ms, why)
        state = group.queues.get(queue)
        if state is None:
            return told(
                State.UNKNOWN, None, f"the committed offset of queue {queue.queue_id} on {copy.broker} is not known"
            )
        # Without an offset, a new instance may begin behind the message. In a retry topic it begins with the first one.
        if state.committed_offset is None and not is_retry and group.is_connected is False:
            why = f"the group has no committed offset for {place}, and no instance is connected"
            return told(State.UNKNOWN, None, why)
        committed = "no offset" if state.committed_offset is None else f"offset {state.committed_offset}"
        if state.committed_offset is None or state.committed_offset <= record.queue_offset:
            flight = _in_flight(facts, group, copy)
            if flight is not None:
                return flight
            held = State.RETRYING if is_retry else State.PENDING
            why = f"the message has {place}; the group has committed {committed}"
            return told(held, record.stored_at_ms, why)
        whys.append(f"the message has {place}; the group has committed {committed}")
    traced = _traced_end(facts, group)
    if traced is not None:
        return traced
    newest = max(copy.record.stored_at_ms for copy in copies)
    if group.moved_at_ms is not None and group.moved_at_ms >= newest:
        when = format_time(group.moved_at_ms)
        return told(State.UNKNOWN, None, f"{whys[-1]}, but its offsets were set by hand at {when}")
    if group.accepts is False:
        return told(State.FILTERED, None, f"{whys[-1]}; its filter {group.filter!r} leaves the message out")
    return told(State.CONSUMED, None, whys[-1])


def _in_flight(facts: Facts, group: GroupFacts, copy: Copy) -> GroupState | None:
    """Return the state if a trace tells that an instance has begun with this delivery and not ended it."""
    ended = {(one.trace.request_id, one.trace.message_id) for one in facts.traces if isinstance(one.trace, SubAfter)}
    for one in facts.traces:
        trace = one.trace
        if (
            isinstance(trace, SubBefore)
            and trace.group == group.group
            and trace.retry_times == copy.record.reconsume_times
            and trace.at_ms >= copy.record.stored_at_ms
            and (trace.request_id, trace.message_id) not in ended
        ):
            return GroupState(group.group, State.IN_FLIGHT, trace.at_ms, f"trace data of {one.client}")
    return None


def _traced_end(facts: Facts, group: GroupFacts) -> GroupState | None:
    """Return the state if a trace tells that the group consumed the message."""
    begun = {
        (one.trace.request_id, one.trace.message_id): one.trace
        for one in facts.traces
        if isinstance(one.trace, SubBefore)
    }
    for one in facts.traces:
        trace = one.trace
        if not isinstance(trace, SubAfter) or not trace.is_success:
            continue
        begin = begun.get((trace.request_id, trace.message_id))
        if group.group in (trace.group, None if begin is None else begin.group):
            return GroupState(group.group, State.CONSUMED, ended_at_ms(trace, begin), f"trace data of {one.client}")
    return None


def _is_waiting(back: Copy, group: GroupFacts) -> bool:
    """Return whether a message that was sent back is not in the retry topic yet."""
    return not any(
        copy.record.reconsume_times == back.record.reconsume_times
        and copy.record.stored_at_ms >= back.record.stored_at_ms
        for copy in group.retries
    )


def _lost_redrive(facts: Facts, group: GroupFacts) -> GroupState | None:
    """Return the state if a dead letter was sent again, and the record of this was not found."""
    known = {copy.record.properties.get(PropertyName.REDRIVEN_FROM) for copy in (*facts.stored, *group.retries)}
    for stored_id, at_ms in group.redriven_at_ms.items():
        if stored_id not in known:
            why = f"the dead letter {stored_id} was sent again at {format_time(at_ms)}, and its record was not found"
            return GroupState(group.group, State.UNKNOWN, None, why)
    return None


def _is_redriven(letter: Copy, facts: Facts, group: GroupFacts) -> bool:
    stored_id = letter.record.stored_id
    return stored_id in group.redriven_at_ms or any(
        copy.record.properties.get(PropertyName.REDRIVEN_FROM) == stored_id for copy in (*facts.stored, *group.retries)
    )


def _newest(copies: Sequence[Copy]) -> Copy | None:
    return max(copies, key=lambda copy: (copy.record.stored_at_ms, copy.record.reconsume_times), default=None)


def _is_newer(copy: Copy, than: Copy | None) -> bool:
    return than is None or copy.record.stored_at_ms >= than.record.stored_at_ms
