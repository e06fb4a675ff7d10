"""The life of a message, told from facts: each event is proven, and what is not known is named."""

from typing import Any

import pytest

from gantry.model import sysflag
from gantry.model.address import Address
from gantry.model.message import CrcState, MessageQueue, StoredMessage
from gantry.model.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from gantry.model.tracedata import EndTransaction, Pub, Recall, SubAfter, SubBefore
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.usecases.lives.events import topic_of
from services.gateway.usecases.lives.facts import ClientTrace, Copy, Facts, GroupFacts, Life, Taken
from services.gateway.usecases.lives.life import EVENTS_MAX, tell

HOST = Address("10.0.0.1", 10911)
CLIENT = Address("10.0.0.9", 5)
QUEUE = MessageQueue("T", "a", 0)
RETRY = MessageQueue("%RETRY%g", "a", 0)


def copy(
    topic: str = "T", at_ms: int = 1_000, offset: int = 7, *, tries: int = 0, broker: str = "a", **more: Any
) -> Copy:
    """Return a record of message M; other arguments are its properties, and `flags`, `prepared`, `place` in the log."""
    flags, prepared, place = more.pop("flags", 0), more.pop("prepared", 0), more.pop("place", at_ms)
    properties = {"UNIQ_KEY": "M", **more}
    record = StoredMessage(
        topic, 0, offset, place, 100, 0, 0, flags, 900, CLIENT, at_ms, HOST, tries, prepared, b"", properties, 1,
        CrcState.OK,
    )  # fmt: skip
    return Copy(record, broker)


def facts(**found: Any) -> Facts:
    return Facts("T", "M", **found)


def group(committed: int | None = None, *, retry_committed: int | None = None, **found: Any) -> GroupFacts:
    queues = {
        QUEUE: QueueState(queue_id=0, committed_offset=committed, max_offset=20),
        RETRY: QueueState(queue_id=0, committed_offset=retry_committed, max_offset=20),
    }
    return GroupFacts("g", **{"queues": queues, "is_connected": True, **found})


def kinds(life: Life) -> list[str]:
    return [event.kind.value for event in life.events]


def state(life: Life) -> str:
    (one,) = life.groups
    return one.state.value


def test_a_sent_message_is_pending_until_the_offset_passes_it():
    life = tell(facts(stored=[copy()], groups=[group(7)]))
    (event,) = life.events
    assert (event.kind, event.at_ms, event.broker, event.client) == ("stored", 1_000, "a", str(CLIENT))
    assert (state(life), life.groups[0].since_ms) == ("pending", 1_000)
    assert "has committed offset 7" in life.groups[0].why
    life = tell(facts(stored=[copy()], groups=[group(8)]))
    assert (state(life), life.groups[0].since_ms) == ("consumed", None)


def test_a_message_that_is_taken_with_a_receipt_is_in_flight_although_the_offset_has_passed_it():
    taken = {(QUEUE, 7): Taken(2_000, 62_000)}
    for committed in (7, 8):
        (found,) = tell(facts(stored=[copy()], groups=[group(committed, taken=taken)])).groups
        assert (found.state, found.since_ms) == ("in_flight", 2_000)
        assert found.why.endswith("not acknowledged; invisible until 1970-01-01T00:01:02.000Z")
    (found,) = tell(facts(stored=[copy(offset=6)], groups=[group(8, taken=taken)])).groups
    assert found.state == "consumed"
    popped = "%RETRY%g_T"
    retry = copy(popped, 5_000, 3, tries=1)
    queues = {QUEUE: QueueState(queue_id=0, committed_offset=8, max_offset=20),
              MessageQueue(popped, "a", 0): QueueState(queue_id=0, committed_offset=4, max_offset=5)}  # fmt: skip
    again = {(MessageQueue(popped, "a", 0), 3): Taken(6_000, 66_000)}
    for known, expected in (({}, "consumed"), (again, "in_flight")):
        life = tell(facts(stored=[copy()], groups=[group(retries=[retry], queues=queues, taken=known)]))
        assert state(life) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"accepts": False, "filter": "B"}, "filtered"),
        ({"accepts": True, "filter": "A"}, "consumed"),
        ({"accepts": None}, "consumed"),
        ({"moved_at_ms": 1_500}, "unknown"),
        ({"moved_at_ms": 500}, "consumed"),
        ({"is_broadcasting": True}, "unknown"),
        ({"queues": {}}, "unknown"),
    ],
)
def test_a_passed_offset_is_judged_by_what_is_known_about_the_group(known, expected):
    life = tell(facts(stored=[copy()], groups=[group(8, **known)]))
    assert state(life) == expected
    assert life.groups[0].why


def test_a_group_without_an_offset_is_pending_only_while_it_is_connected():
    assert state(tell(facts(stored=[copy()], groups=[group(None)]))) == "pending"
    assert state(tell(facts(stored=[copy()], groups=[group(None, is_connected=None)]))) == "pending"
    assert state(tell(facts(stored=[copy()], groups=[group(None, is_connected=False)]))) == "unknown"


def test_a_message_that_is_stored_twice_is_pending_until_both_are_passed():
    both = [copy(), copy(offset=9, at_ms=1_100)]
    assert state(tell(facts(stored=both, groups=[group(8)]))) == "pending"
    assert state(tell(facts(stored=both, groups=[group(10)]))) == "consumed"


def test_a_retry_waits_then_is_due_then_consumed():
    back = copy(SCHEDULE_TOPIC, 2_000, tries=1, REAL_TOPIC="%RETRY%g", RETRY_TOPIC="T", DELAY="3")
    due = copy("%RETRY%g", 12_000, 0, tries=1, RETRY_TOPIC="T")
    life = tell(facts(stored=[copy()], waiting=[back], groups=[group(8)]))
    assert (kinds(life), state(life)) == (["stored", "sent_back"], "retrying")
    assert (life.events[1].attempt, life.events[1].group, life.groups[0].since_ms) == (1, "g", 2_000)
    assert "delay level 3" in life.groups[0].why
    for committed, expected in ((None, "retrying"), (0, "retrying"), (1, "consumed")):
        known = group(8, retry_committed=committed, retries=[due], is_connected=False)
        life = tell(facts(stored=[copy()], waiting=[back], groups=[known]))
        assert (kinds(life), state(life)) == (["stored", "sent_back", "retry_due"], expected)
    assert life.events[2].attempt == 2


def dead(at_ms: int = 3_000) -> Copy:
    return copy("%DLQ%g", at_ms, 0, tries=2, RETRY_TOPIC="T")


def test_a_dead_letter_ends_the_retries():
    life = tell(facts(stored=[copy()], groups=[group(8, letters=[dead()])]))
    assert (kinds(life), state(life), life.groups[0].since_ms) == (["stored", "dead"], "dead", 3_000)
    assert "after 2 failed deliveries" in life.groups[0].why


def test_a_redriven_letter_is_retried_or_stored_again():
    letter = dead()
    stored_id = letter.record.stored_id
    again = copy("%RETRY%g", 5_000, 1, RETRY_TOPIC="T", GANTRY_REDRIVEN_FROM=stored_id)
    known = group(8, letters=[letter], retries=[again], redriven_at_ms={stored_id: 5_001}, retry_committed=1)
    life = tell(facts(stored=[copy()], groups=[known]))
    assert (kinds(life), state(life)) == (["stored", "dead", "redriven", "retry_due"], "retrying")
    to_topic = copy("T", 5_000, 8, GANTRY_REDRIVEN_FROM=stored_id)
    life = tell(facts(stored=[copy(), to_topic], groups=[group(8, letters=[letter])]))
    assert (kinds(life), state(life)) == (["stored", "dead", "redriven", "stored"], "pending")


def test_a_redrive_whose_record_is_gone_leaves_the_state_unknown():
    letter = dead()
    known = group(8, letters=[letter], redriven_at_ms={letter.record.stored_id: 5_000})
    life = tell(facts(stored=[copy()], groups=[known]))
    assert (kinds(life), state(life)) == (["stored", "dead", "redriven"], "unknown")
    assert "its record was not found" in life.groups[0].why


def test_a_letter_that_dies_again_is_dead():
    letter = dead()
    again = copy("%RETRY%g", 5_000, 1, RETRY_TOPIC="T", GANTRY_REDRIVEN_FROM=letter.record.stored_id)
    second = copy("%DLQ%g", 6_000, 1, tries=1, RETRY_TOPIC="T", GANTRY_REDRIVEN_FROM=letter.record.stored_id)
    known = group(8, letters=[letter, second], retries=[again], retry_committed=2)
    life = tell(facts(stored=[copy()], groups=[known]))
    assert (kinds(life)[-1], state(life), life.groups[0].since_ms) == ("dead", "dead", 6_000)


def test_a_delayed_message_is_pending_until_its_time():
    level = copy(SCHEDULE_TOPIC, REAL_TOPIC="T", DELAY="4")
    life = tell(facts(waiting=[level], groups=[group()]))
    assert (kinds(life), state(life)) == (["scheduled"], "pending")
    assert "it waits for its time" in life.groups[0].why
    timed = copy(TIMER_TOPIC, REAL_TOPIC="T", TIMER_OUT_MS="60000")
    rolled = copy(TIMER_TOPIC, 30_000, REAL_TOPIC="T", TIMER_OUT_MS="90000", TIMER_ROLL_TIMES="1")
    life = tell(facts(waiting=[timed, rolled], stored=[copy(at_ms=61_000)]))
    assert (life.events[0].kind, life.events[0].detail) == ("scheduled", "until 1970-01-01T00:01:01.000Z")
    assert kinds(life) == ["scheduled", "stored"]


def test_a_recalled_message_is_for_no_group():
    timed = copy(TIMER_TOPIC, REAL_TOPIC="T", TIMER_OUT_MS="60000")
    recalled = {"REAL_TOPIC": "T", "TIMER_OUT_MS": "60000", "TIMER_DEL_UNIQKEY": "T+M"}
    recall = copy(TIMER_TOPIC, 2_000, **recalled)
    life = tell(facts(waiting=[timed, recall], groups=[group()]))
    assert (kinds(life), life.groups) == (["scheduled", "recalled"], [])
    # A rescheduled message waits for another second.
    later = copy(TIMER_TOPIC, 1_900, REAL_TOPIC="T", TIMER_OUT_MS="80000")
    life = tell(facts(waiting=[timed, recall, later], groups=[group()]))
    assert (kinds(life), state(life)) == (["scheduled", "scheduled", "recalled"], "pending")


@pytest.mark.parametrize(
    "other",
    [
        {"TIMER_DEL_UNIQKEY": "OTHER+M"},
        {"TIMER_DEL_UNIQKEY": "T+N"},
        {"TIMER_OUT_MS": "61000"},
        {"broker": "b"},
        {"place": 800},
        {"TIMER_ROLL_TIMES": "1", "TIMER_FIRST_OFFSET": "800"},
    ],
    ids=["topic", "key", "second", "broker", "sent after it", "sent after its first record"],
)
def test_a_recall_of_something_else_is_none(other: dict[str, Any]):
    timed = copy(TIMER_TOPIC, REAL_TOPIC="T", TIMER_OUT_MS="60000")
    recall = {"REAL_TOPIC": "T", "TIMER_OUT_MS": "60000", "TIMER_DEL_UNIQKEY": "T+M"}
    assert tell(facts(waiting=[timed, copy(TIMER_TOPIC, 2_000, **recall)], groups=[group()])).groups == []
    life = tell(facts(waiting=[timed, copy(TIMER_TOPIC, 2_000, **{**recall, **other})], groups=[group()]))
    assert state(life) == "pending"
    assert "recalled" not in kinds(life)
    assert any("no such record was found" in text for text in life.missing)


def test_a_message_that_waits_in_parts_is_recalled_by_its_first_record():
    properties = {"REAL_TOPIC": "T", "TIMER_OUT_MS": "60000"}
    part = copy(TIMER_TOPIC, 3_000, TIMER_ROLL_TIMES="1", TIMER_FIRST_OFFSET="1000", **properties)
    recall = copy(TIMER_TOPIC, 2_000, TIMER_DEL_UNIQKEY="T+M", **properties)
    assert tell(facts(waiting=[part, recall], groups=[group()])).groups == []


HALF = copy(TRANS_HALF_TOPIC, REAL_TOPIC="T", PGROUP="pg")
CHECKED = copy(TRANS_HALF_TOPIC, 7_000, 8, REAL_TOPIC="T", PGROUP="pg", TRANSACTION_CHECK_TIMES="1")


def test_a_transaction_is_open_then_committed():
    life = tell(facts(halves=[HALF, CHECKED], groups=[group()]))
    assert (kinds(life), state(life)) == (["half", "checked"], "pending")
    assert (life.events[1].attempt, life.events[1].group) == (1, "pg")
    stored = copy(at_ms=8_000, flags=sysflag.TRANSACTION_COMMIT, prepared=1_000, PGROUP="pg")
    life = tell(facts(halves=[HALF, CHECKED], stored=[stored], ended_at_ms={"a": 9_000}, groups=[group(8)]))
    assert (kinds(life), state(life)) == (["half", "checked", "committed", "stored"], "consumed")


def test_a_transaction_is_rolled_back_or_expires():
    life = tell(facts(halves=[HALF], ended_at_ms={"a": 9_000}, groups=[group()]))
    assert (kinds(life), life.groups) == (["half", "rolled_back"], [])
    given_up = copy(TRANS_CHECK_MAX_TIME_TOPIC, 9_000, REAL_TOPIC="T", PGROUP="pg")
    life = tell(facts(halves=[HALF], given_up=[given_up], ended_at_ms={"a": 9_000}, groups=[group()]))
    assert (kinds(life), life.groups) == (["half", "expired"], [])


def pub(**fields: Any) -> ClientTrace:
    trace = Pub(
        **{
            "at_ms": 990, "region": "R", "group": "pg", "topic": "T", "message_id": "M", "tag": None, "keys": None,
            "store_host": str(HOST), "body_bytes": 1, "cost_ms": 12, "message_kind": 0, "is_success": True,
            "stored_id": copy().record.stored_id, **fields,
        }
    )  # fmt: skip
    return ClientTrace(trace, "10.0.0.9:6")


def before(at_ms: int, request: str = "R1", **fields: Any) -> ClientTrace:
    trace = SubBefore(
        **{"at_ms": at_ms, "region": None, "group": "g", "request_id": request, "message_id": "M", "retry_times": 0,
           "keys": None, **fields}
    )  # fmt: skip
    return ClientTrace(trace, "10.0.0.7:1")


def after(request: str = "R1", **fields: Any) -> ClientTrace:
    trace = SubAfter(
        **{"request_id": request, "message_id": "M", "cost_ms": 5, "is_success": True, "keys": None, **fields}
    )
    return ClientTrace(trace, "10.0.0.7:1")


def test_traces_add_who_and_when():
    traces = [pub(), before(2_000), after()]
    life = tell(facts(stored=[copy()], traces=traces, groups=[group(8)]))
    assert [(event.kind.value, event.at_ms, event.client) for event in life.events] == [
        ("stored", 1_000, str(CLIENT)),
        ("delivered", 2_000, "10.0.0.7:1"),
        ("consumed", 2_005, "10.0.0.7:1"),
    ]
    assert "producer group pg sent it in 12 ms" in life.events[0].detail
    assert (life.groups[0].state, life.groups[0].since_ms, life.missing) == ("consumed", 2_005, [])


def test_a_delivery_without_an_end_is_in_flight():
    life = tell(facts(stored=[copy()], traces=[before(2_000)], groups=[group(7)]))
    assert (state(life), life.groups[0].since_ms) == ("in_flight", 2_000)
    life = tell(facts(stored=[copy()], traces=[before(2_000), after()], groups=[group(7)]))
    assert state(life) == "pending"


def test_a_failed_delivery_is_told_with_its_reason():
    life = tell(facts(stored=[copy()], traces=[before(2_000), after(is_success=False, code=1, group="g")]))
    assert (life.events[2].kind, life.events[2].detail) == ("failed", "trace data: time-out after 5 ms")


def test_offsets_that_were_moved_do_not_hide_what_traces_prove():
    traces = [before(2_000), after(at_ms=2_500, group="g")]
    life = tell(facts(stored=[copy()], traces=traces, groups=[group(8, moved_at_ms=3_000)]))
    assert (state(life), life.groups[0].since_ms) == ("consumed", 2_500)


def test_a_message_that_has_expired_is_told_from_traces():
    life = tell(facts(traces=[pub(), before(2_000), after()], groups=[group(8)]))
    assert kinds(life) == ["stored", "delivered", "consumed"]
    assert state(life) == "consumed"
    assert "it may have expired" in life.missing[0]
    life = tell(facts(traces=[pub()], groups=[group(8)]))
    assert (state(life), life.groups[0].why) == (
        "unknown",
        "the record of the message was not found, so offsets prove nothing",
    )


def test_decisions_and_recalls_in_traces_count_only_if_the_log_does_not_tell_them():
    end = EndTransaction(
        at_ms=8_500, group="pg", topic="T", message_id="M", store_host="", state="ROLLBACK_MESSAGE", is_from_check=False
    )
    recall = Recall(at_ms=8_600, group="pg", topic="T", message_id="M", is_success=True)
    traces = [ClientTrace(end, "c:1"), ClientTrace(recall, "c:1")]
    assert kinds(tell(facts(halves=[HALF], traces=traces))) == ["half", "rolled_back", "recalled"]
    life = tell(facts(halves=[HALF], ended_at_ms={"a": 9_000}, traces=traces[:1]))
    assert [event.at_ms for event in life.events] == [1_000, 9_000]


def test_missing_parts_are_named():
    life = tell(facts(stored=[copy()], missing=["broker b is away"]))
    assert life.missing[0] == "broker b is away"
    assert "no trace data of consumers" in life.missing[1]


def test_events_beyond_the_limit_are_counted():
    life = tell(facts(stored=[copy(at_ms=number) for number in range(EVENTS_MAX + 3)]))
    assert len(life.events) == EVENTS_MAX
    assert "3 later events are left out" in life.missing


@pytest.mark.parametrize(
    ("record", "topic"),
    [
        (copy(), "T"),
        (copy(SCHEDULE_TOPIC, REAL_TOPIC="T"), "T"),
        (copy(SCHEDULE_TOPIC, REAL_TOPIC="%RETRY%g", RETRY_TOPIC="T"), "T"),
        (copy("%DLQ%g", RETRY_TOPIC="T", REAL_TOPIC="%RETRY%g"), "T"),
        (copy("%RETRY%g", RETRY_TOPIC="T"), "T"),
        (copy(TRANS_HALF_TOPIC, REAL_TOPIC="T"), "T"),
        # A message that was sent back keeps RETRY_TOPIC when its application sends it again.
        (copy("U", RETRY_TOPIC="T", REAL_TOPIC="T"), "U"),
    ],
)
def test_each_copy_knows_the_topic_of_the_message(record, topic):
    assert topic_of(record.record) == topic
