"""Requests and answers of a load of messages that wait, and a check of what was delivered (pure).

The load (waitingload.py) has four kinds of messages: transactions, messages for a set time, messages with a delay level,
and messages that their consumer always sends back. `violations` compares its history with every message that can be
read after kills or a power cut, once nothing waits any more. It returns one sentence for each broken promise:

- an acknowledged message comes, and none comes before its time, or after its recall was acknowledged;
- a committed message comes, and no message that was rolled back or is undecided ever does;
- every open transaction is asked about until it is decided;
- a message that was sent back comes again, or is a dead letter; every one ends as a dead letter, after the last retry;
- a broker that runs delivers nothing twice, and after a kill repeats only what it delivered shortly before.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from gantry.model.sysflag import TRANSACTION_COMMIT

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
TOPIC, FAILING = "T", "FAILING"
RETRIES_MAX = 2
VIOLATIONS_SHOWN = 10


class Delivered(NamedTuple):
    """A message that can be read.

    Attributes:
        failures: Number of times that the consumer has sent it back.
    """

    topic: str
    body: bytes
    failures: int
    stored_at_ms: int


@dataclass(slots=True)
class WaitingHistory:
    """All requests and answers of one store.

    Attributes:
        due_ms: Earliest time of delivery of each message that was sent, by body.
        acknowledged: Messages that were answered "stored"; no half messages.
        recalled: Messages whose recall was acknowledged long enough before their time.
        doubtful: Messages whose recall was sent.
        begun: Half messages that were answered "stored".
        decisions: Decisions of the producer. It never changes its mind.
        decided: Decisions that were answered.
        attempts: Number of times that a message was sent back, by body and failures before.
        sent_back: Those of them that were answered.
        back_due_ms: Earliest time of the next delivery after them.
    """

    due_ms: dict[bytes, int] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    doubtful: set[bytes] = field(default_factory=set)
    begun: set[bytes] = field(default_factory=set)
    decisions: dict[bytes, int] = field(default_factory=dict)
    decided: set[bytes] = field(default_factory=set)
    attempts: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    sent_back: set[tuple[bytes, int]] = field(default_factory=set)
    back_due_ms: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def copy(self) -> "WaitingHistory":
        """Return the history so far, for a copy of the store."""
        return WaitingHistory(
            dict(self.due_ms), set(self.acknowledged), set(self.recalled), set(self.doubtful), set(self.begun),
            dict(self.decisions), set(self.decided), Counter(self.attempts), set(self.sent_back), dict(self.back_due_ms),
        )  # fmt: skip

    def is_committed(self, body: bytes) -> bool:
        """Return whether the producer has committed a message."""
        return self.decisions.get(body) == TRANSACTION_COMMIT

    def summary(self) -> str:
        """Return the numbers of a run as text."""
        commits = sum(self.is_committed(body) for body in self.decisions)
        return (
            f"{len(self.acknowledged)} acknowledged, {len(self.recalled)} recalled, {len(self.begun)} transactions "
            f"({commits} committed), {len(self.sent_back)} sent back"
        )


def open_ends(history: WaitingHistory, delivered: Sequence[Delivered]) -> list[str]:
    """Return what must still come, one sentence each."""
    there = {message.body for message in delivered if message.topic == TOPIC}
    failed = {(message.body, message.failures) for message in delivered if message.topic == RETRY}
    dead = {message.body for message in delivered if message.topic == DEAD}
    ends = [f"{body!r} was acknowledged and never came" for body in history.acknowledged - there - history.doubtful
            if not is_failing(body)]  # fmt: skip
    ends += [f"{body!r} was committed and never came" for body in history.decisions
             if history.is_committed(body) and body not in there]  # fmt: skip
    ends += [f"{body!r} is open, and nobody asks" for body in history.begun - history.decisions.keys()]
    ends += [
        f"{body!r} was sent back {failures + 1} times, and came neither again nor as a dead letter"
        for body, failures in history.sent_back
        if body not in dead and (body, failures + 1) not in failed
    ]
    ends += [
        f"{body!r} fails always, and is no dead letter" for body in history.acknowledged - dead if is_failing(body)
    ]
    return ends


def violations(
    history: WaitingHistory, delivered: Sequence[Delivered], kills_ms: Sequence[int], marks_ms: Mapping[str, int]
) -> list[str]:
    """Return the broken promises, once nothing waits any more.

    Args:
        history: Requests and answers.
        delivered: Every message that can be read.
        kills_ms: The times of the kills, ascending.
        marks_ms: Time within which a running broker marks a delivered message, so that no later kill repeats it, by the
            first letter of its body; -1: no kill may repeat it. Other messages may come once more for each kill.
    """
    found = open_ends(history, delivered)
    times: dict[tuple[str, bytes, int], list[int]] = defaultdict(list)
    for message in delivered:
        times[message.topic, message.body, message.failures].append(message.stored_at_ms)
    for (topic, body, failures), stored_ms in times.items():
        name = f"{topic} {body!r} after {failures} failures"
        if topic == TOPIC:
            found += [f"{name}: {reason}" for reason in _unwanted(history, body, min(stored_ms))]
            found += [f"{name}: {reason}" for reason in _repeated(marks_ms.get(chr(body[0])), stored_ms, kills_ms)]
        elif topic != FAILING:
            found += [
                f"{name}: {reason}" for reason in _wrong_retry(history, topic, body, failures, stored_ms, len(kills_ms))
            ]
    return found


def is_failing(body: bytes) -> bool:
    """Return whether the consumer sends a message back."""
    return body.startswith(b"f")


def _unwanted(history: WaitingHistory, body: bytes, first_ms: int) -> list[str]:
    if body not in history.due_ms:
        return ["was never sent"]
    found = []
    if body.startswith((b"x", b"d")) and not history.is_committed(body):
        found.append(f"came, and the producer's decision is {history.decisions.get(body)}")
    if body in history.recalled:
        found.append("came after its recall")
    if first_ms < history.due_ms[body]:
        found.append(f"came {history.due_ms[body] - first_ms} ms early")
    return found


def _repeated(mark_ms: int | None, stored_ms: list[int], kills_ms: Sequence[int]) -> list[str]:
    """Return what is wrong with the deliveries of one message if there are several."""
    if len(stored_ms) > 1 + len(kills_ms):
        return [f"came {len(stored_ms)} times with {len(kills_ms)} kills"]
    if mark_ms is None:
        return []
    found = []
    for earlier_ms, later_ms in pairwise(sorted(stored_ms)):
        life = bisect_left(kills_ms, earlier_ms)
        if life == bisect_left(kills_ms, later_ms):
            found.append(f"came twice in one life of the broker, {later_ms - earlier_ms} ms apart")
        elif kills_ms[life] - earlier_ms > mark_ms:
            found.append(f"came again, though it had come {kills_ms[life] - earlier_ms} ms before the kill")
    return found


def _wrong_retry(
    history: WaitingHistory, topic: str, body: bytes, failures: int, stored_ms: list[int], kills: int
) -> list[str]:
    found = []
    before = (body, failures - 1)
    if not history.attempts[before]:
        return ["was never sent back so often"]
    if topic == RETRY and failures > RETRIES_MAX:
        found.append(f"came more than {1 + RETRIES_MAX} times")
    if topic == RETRY and min(stored_ms) < history.back_due_ms[before]:
        found.append(f"came {history.back_due_ms[before] - min(stored_ms)} ms early")
    if len(stored_ms) > history.attempts[before] + kills:
        found.append(f"came {len(stored_ms)} times after {history.attempts[before]} requests and {kills} kills")
    return found


def assert_kept(
    history: WaitingHistory, delivered: Sequence[Delivered], kills_ms: Sequence[int], marks_ms: Mapping[str, int]
) -> None:
    """Assert that there are no violations."""
    found = violations(history, delivered, kills_ms, marks_ms)
    shown = "\n".join(found[:VIOLATIONS_SHOWN])
    assert not found, f"{len(found)} broken promises after {len(kills_ms)} kills; {history.summary()}:\n{shown}"
