"""The events in the life of a message, told from its records and from trace data. Pure."""

from collections.abc import Iterator, Sequence

from gantry.model import sysflag
from gantry.model.message import StoredMessage
from gantry.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)
from gantry.model.propertyname import PropertyName
from gantry.model.timerdeletion import deletes, deletion_order, key_of
from gantry.model.tracedata import HALF_MESSAGE, RESULTS, EndTransaction, Pub, Recall, SubAfter, SubBefore
from gantry.runtime.digits import parse_digits
from services.gateway.schemas.times import format_time
from services.gateway.usecases.lives.facts import ClientTrace, Copy, Event, Facts, GroupFacts, Kind

_INT64_MAX = 2**63 - 1
_SECOND_MS = 1_000
_ORDER = {kind: at for at, kind in enumerate(Kind)}


def events_of(facts: Facts) -> list[Event]:
    """Return the events by time."""
    events = [*_transaction(facts), *_waits(facts), *_stored(facts)]
    for group in facts.groups:
        events += _retries(group)
    events += _traced(facts, {event.kind for event in events})
    return sorted(events, key=lambda event: (event.at_ms, _ORDER[event.kind]))


def topic_of(record: StoredMessage) -> str:
    """Return the topic to which a message was sent, also for a record in a retry topic or a topic of the broker."""
    properties = record.properties
    own = properties.get(PropertyName.RETRY_TOPIC) if _is_of_group(record) else None
    return own or (properties.get(PropertyName.REAL_TOPIC) if record.topic in _HIDING else None) or record.topic


_HIDING = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC})


def _is_of_group(record: StoredMessage) -> bool:
    real = record.properties.get(PropertyName.REAL_TOPIC, "") if record.topic in _HIDING else record.topic
    return real.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_committed(copy: Copy) -> bool:
    """Return whether a record was stored by the commit of a transaction, or follows from such a record."""
    record = copy.record
    return record.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT or bool(
        record.prepared_transaction_offset
    )


def is_deletion(copy: Copy) -> bool:
    """Return whether a record of the timer's topic recalls a message."""
    return PropertyName.TIMER_DEL_UNIQKEY in copy.record.properties


def retry_group(copy: Copy) -> str | None:
    """Return the group to whose retry topic a waiting record goes; None if it goes to the topic itself."""
    topic = copy.record.properties.get(PropertyName.REAL_TOPIC, "")
    return topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else None


def due_at_ms(copy: Copy) -> int | None:
    """Return the time until which a record of the timer's topic waits; None for a delay level."""
    if copy.record.topic != TIMER_TOPIC:
        return None
    second_ms = parse_digits(copy.record.properties.get(PropertyName.TIMER_OUT_MS, ""), _INT64_MAX)
    # The timer delivers the messages of a second at its end.
    return None if second_ms is None else second_ms + _SECOND_MS


def wait_of(copy: Copy) -> str:
    """Return until when a record waits."""
    at_ms = due_at_ms(copy)
    if at_ms is not None:
        return f"until {format_time(at_ms)}"
    return f"delay level {copy.record.properties.get(PropertyName.DELAY, 'unknown')}"


def is_recalled(copy: Copy, waiting: Sequence[Copy]) -> bool:
    """Return whether a waiting record was recalled in time, as its broker decides (ADR 0048).

    A recall names topic, key and second, and hits what the same broker had stored before it.
    """
    record = copy.record
    if record.topic != TIMER_TOPIC or PropertyName.REAL_TOPIC not in record.properties:
        return False
    due_ms, key = due_at_ms(copy), key_of(record)
    return due_ms is not None and any(
        other.broker == copy.broker
        and other.record.properties.get(PropertyName.TIMER_DEL_UNIQKEY) == key
        and (due_at_ms(other) or 0) // _SECOND_MS == due_ms // _SECOND_MS
        and deletes(deletion_order(other.record), record)
        for other in waiting
    )


def hits_something(deletion: Copy, facts: Facts) -> bool:
    """Return whether a recall hits a record that was found."""
    return any(is_recalled(copy, [deletion]) for copy in facts.waiting if not is_deletion(copy))


def _event(copy: Copy, kind: Kind, detail: str, *, group: str | None = None, attempt: int | None = None) -> Event:
    client = str(copy.record.born_host) if kind in _SENT_BY_CLIENTS else None
    return Event(copy.record.stored_at_ms, kind, detail, copy.broker, group, client, attempt)


_SENT_BY_CLIENTS = frozenset({Kind.STORED, Kind.HALF, Kind.SCHEDULED, Kind.RECALLED})


def _stored(facts: Facts) -> Iterator[Event]:
    pubs = [(one.trace, one.client) for one in facts.traces if isinstance(one.trace, Pub)]
    sends = {trace.stored_id: trace for trace, _ in pubs}
    for copy in facts.stored:
        record = copy.record
        detail = f"queue {record.queue_id}, offset {record.queue_offset}"
        send = sends.get(record.stored_id)
        if send is not None:
            detail += f"; producer group {send.group} sent it in {send.cost_ms} ms"
        letter = record.properties.get(PropertyName.REDRIVEN_FROM)
        if letter is not None:
            yield _event(copy, Kind.REDRIVEN, f"the dead letter {letter} was sent again to the topic")
        yield _event(copy, Kind.STORED, detail)
    if not facts.stored and not facts.waiting and not facts.halves:
        for pub, client in pubs:
            kind = Kind.HALF if pub.message_kind == HALF_MESSAGE else Kind.STORED
            detail = f"trace data of producer group {pub.group}; the record itself was not found"
            yield Event(pub.at_ms + pub.cost_ms, kind, detail, client=client)


def _transaction(facts: Facts) -> Iterator[Event]:
    halves = sorted(facts.halves, key=lambda copy: copy.record.queue_offset)
    for half in halves:
        properties = half.record.properties
        group = properties.get(PropertyName.PGROUP)
        checks = parse_digits(properties.get(PropertyName.TRANSACTION_CHECK_TIMES, ""), _INT64_MAX)
        if checks is None:
            yield _event(half, Kind.HALF, "consumers can't read the message yet", group=group)
        else:
            detail = "the broker asked a producer of the group for the decision"
            yield _event(half, Kind.CHECKED, detail, group=group, attempt=checks)
    committed = [copy for copy in (*facts.stored, *facts.waiting) if is_committed(copy)]
    if committed:
        first = min(committed, key=lambda copy: copy.record.stored_at_ms)
        group = first.record.properties.get(PropertyName.PGROUP)
        yield _event(first, Kind.COMMITTED, "the broker stored the message for consumers", group=group)
    for copy in facts.given_up:
        group = copy.record.properties.get(PropertyName.PGROUP)
        yield _event(copy, Kind.EXPIRED, "no decision came, and the broker gave up asking", group=group)
    if halves and not committed and not facts.given_up:
        for broker, at_ms in facts.ended_at_ms.items():
            group = halves[0].record.properties.get(PropertyName.PGROUP)
            detail = "the half message is marked as decided, and there is no message for consumers"
            yield Event(at_ms, Kind.ROLLED_BACK, detail, broker, group)


def _waits(facts: Facts) -> Iterator[Event]:
    for copy in facts.waiting:
        record, group = copy.record, retry_group(copy)
        if is_deletion(copy):
            if not hits_something(copy, facts):
                continue  # Anybody who knows the message id can name a second at which it never waited.
            yield _event(copy, Kind.RECALLED, f"the message that waits {wait_of(copy)} is deleted")
        elif PropertyName.TIMER_ROLL_TIMES in record.properties:
            continue  # The timer stores a message again when its time is more than two days ahead.
        elif group is None:
            yield _event(copy, Kind.SCHEDULED, wait_of(copy))
        else:
            detail = f"retry {record.reconsume_times} waits: {wait_of(copy)}"
            yield _event(copy, Kind.SENT_BACK, detail, group=group, attempt=record.reconsume_times)


def _retries(facts: GroupFacts) -> Iterator[Event]:
    shown: set[str] = set()
    for copy in facts.retries:
        record = copy.record
        letter = record.properties.get(PropertyName.REDRIVEN_FROM)
        # A message that failed again after its redrive keeps the property; its failures are counted from 0.
        if letter is not None and record.reconsume_times == 0:
            shown.add(letter)
            yield _event(copy, Kind.REDRIVEN, f"the dead letter {letter} was sent again", group=facts.group)
        detail = f"in the retry topic, queue {record.queue_id}, offset {record.queue_offset}"
        attempt = record.reconsume_times + 1
        yield _event(copy, Kind.RETRY_DUE, detail, group=facts.group, attempt=attempt)
    for copy in facts.letters:
        record = copy.record
        detail = f"dead letter {record.stored_id}"
        yield _event(copy, Kind.DEAD, detail, group=facts.group, attempt=record.reconsume_times or None)
        at_ms = facts.redriven_at_ms.get(record.stored_id)
        if at_ms is not None and record.stored_id not in shown:
            detail = f"the dead letter {record.stored_id} was sent again"
            yield Event(at_ms, Kind.REDRIVEN, detail, group=facts.group)


def _traced(facts: Facts, proven: set[Kind]) -> Iterator[Event]:
    begun = {
        (one.trace.request_id, one.trace.message_id): one.trace
        for one in facts.traces
        if isinstance(one.trace, SubBefore)
    }
    for one in facts.traces:
        trace = one.trace
        if isinstance(trace, SubBefore):
            attempt = trace.retry_times + 1
            yield Event(
                trace.at_ms, Kind.DELIVERED, "trace data", group=trace.group, client=one.client, attempt=attempt
            )
        elif isinstance(trace, SubAfter):
            yield from _ended(one, trace, begun.get((trace.request_id, trace.message_id)))
        elif isinstance(trace, EndTransaction):
            kind = _DECISIONS.get(trace.state)
            if kind is not None and not {Kind.COMMITTED, Kind.ROLLED_BACK} & proven:
                detail = "trace data: the producer sent the decision"
                yield Event(trace.at_ms, kind, detail, group=trace.group, client=one.client)
        elif isinstance(trace, Recall) and trace.is_success and Kind.RECALLED not in proven:
            yield Event(trace.at_ms, Kind.RECALLED, "trace data", client=one.client)


_DECISIONS = {"COMMIT_MESSAGE": Kind.COMMITTED, "ROLLBACK_MESSAGE": Kind.ROLLED_BACK}


def _ended(one: ClientTrace, trace: SubAfter, begin: SubBefore | None) -> Iterator[Event]:
    at_ms = ended_at_ms(trace, begin)
    if at_ms is None:
        return
    group = trace.group or (None if begin is None else begin.group)
    result = RESULTS[trace.code] if trace.code is not None and trace.code < len(RESULTS) else "result"
    if trace.is_success:
        detail = f"trace data: {trace.cost_ms} ms"
    else:
        detail = f"trace data: {result} after {trace.cost_ms} ms"
    kind = Kind.CONSUMED if trace.is_success else Kind.FAILED
    attempt = None if begin is None else begin.retry_times + 1
    yield Event(at_ms, kind, detail, group=group, client=one.client, attempt=attempt)


def ended_at_ms(trace: SubAfter, begin: SubBefore | None) -> int | None:
    """Return the time of the end of a consumption; None if the client gives neither it nor the beginning."""
    if trace.at_ms is not None or begin is None:
        return trace.at_ms
    return begin.at_ms + trace.cost_ms
