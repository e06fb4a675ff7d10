"""Messages that wait go from our broker to Apache's and back: each comes on the other side, at its time, once.

Both brokers leave behind: delay levels, messages for a set time (one of them is stored again on its way, one is
recalled), a message that its consumer has sent back, and transactions that are committed, rolled back, and open after a
first check.
"""

import signal
from collections import Counter
from pathlib import Path

import pytest

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import RecallMessageHeader
from tests.fault.brokers import assert_verifies
from tests.support import foreign
from tests.support.brokerprocess import SMALL_STORE, BrokerProcess, Peer, wait_until
from tests.support.transactionpeer import COMMIT, ROLLBACK, TransactionPeer, now_ms, transaction_peer

LEVELS = "1s 8s"
LEVEL_S = {"1": 1, "2": 8}
GROUP, RETRY = "g", "%RETRY%g"
WINDOW_SLOTS = 4
TIMED_S = {"after 3 s": 3, "after 8 s": 8, "stored again": 2 * WINDOW_SLOTS + 2}
CHECK_MS = "1000"
CHECKS_MAX = "100"  # Apache's broker goes on with its checks while it stops, and gives up at 15 by default.
DECISIONS = {"open, commit": COMMIT, "open, rollback": ROLLBACK}
SETTINGS = {
    "messageDelayLevel": LEVELS,
    "timerRollWindowSlot": str(WINDOW_SLOTS),
    "transactionCheckInterval": CHECK_MS,
    "transactionTimeOut": CHECK_MS,
    "transactionCheckMax": CHECKS_MAX,
}
OUR_SETTINGS = {
    **SMALL_STORE,
    "GANTRY_BROKER_MESSAGE_DELAY_LEVEL": LEVELS,
    "GANTRY_BROKER_TIMER_ROLL_WINDOW_SLOT": str(WINDOW_SLOTS),
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": CHECK_MS,
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": CHECK_MS,
    "GANTRY_BROKER_TRANSACTION_CHECK_MAX": CHECKS_MAX,
}
APACHES_SETTINGS = {
    **SETTINGS,
    "mappedFileSizeCommitLog": SMALL_STORE["GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG"],
    "mappedFileSizeConsumeQueue": SMALL_STORE["GANTRY_BROKER_MAPPED_FILE_SIZE_CONSUME_QUEUE"],
    "maxHashSlotNum": SMALL_STORE["GANTRY_BROKER_MAX_HASH_SLOT_NUM"],
    "maxIndexNum": SMALL_STORE["GANTRY_BROKER_MAX_INDEX_NUM"],
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": "500",
    "transactionOpBatchInterval": "100",  # A killed broker forgets decisions whose op message is not stored.
}
EARLY_MS_MAX = 1_000  # Apache's timer counts in whole seconds, and drops the rest.


def stored(answer: RemotingCommand) -> RemotingCommand:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def leave_waiting(address: str, name: str) -> dict[bytes, int]:
    """Send everything that waits; return the time at which each message is to be delivered (ms), 0 for at once."""
    due_ms: dict[bytes, int] = {}
    async with transaction_peer(address) as producer:
        await producer.make_topic(queues=1)
        for level, seconds in LEVEL_S.items():
            body = f"{name}: level {level}".encode()
            due_ms[body] = now_ms() + 1000 * seconds
            stored(await producer.store(body, DELAY=level))
        for text, seconds in TIMED_S.items():
            body = f"{name}: {text}".encode()
            due_ms[body] = now_ms() + 1000 * seconds
            stored(await producer.store(body, TIMER_DELIVER_MS=str(due_ms[body])))
        # Not stored again: Apache's broker would deliver the message if its time is over when it is put back.
        recalled_at_ms = now_ms() + 1000 * (WINDOW_SLOTS - 1)
        answer = stored(await producer.store(f"{name}: recalled".encode(), TIMER_DELIVER_MS=str(recalled_at_ms)))
        header = RecallMessageHeader(topic="T", recall_handle=answer.ext_fields["recallHandle"])
        stored(await producer.ask(RequestCode.RECALL_MESSAGE, header))
        body = f"{name}: sent back".encode()
        due_ms[body] = await send_back(producer, body, level="2")
        for text, decision in (("commit", COMMIT), ("rollback", ROLLBACK)):
            half = stored(await producer.begin(f"{name}: {text}".encode()))
            stored(await producer.end(half, decision))
        for text in DECISIONS:
            stored(await producer.begin(f"{name}: {text}".encode()))

        async def are_checked() -> bool:
            return {half.body for half in producer.checks} >= {f"{name}: {text}".encode() for text in DECISIONS}

        await wait_until(are_checked, "a first check of the open transactions")
    return due_ms | {f"{name}: commit".encode(): 0, f"{name}: open, commit".encode(): 0}


async def send_back(peer: TransactionPeer, body: bytes, *, level: str) -> int:
    """Store a message, and send it back as its consumer. Return the time at which it is to come again (ms)."""
    await peer.make_topic("F", queues=1)
    group = b'{"groupName":"%s","retryQueueNums":1}' % GROUP.encode()
    stored(await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))
    answer = stored(await peer.send("F", body, properties={"UNIQ_KEY": body.hex()}, born_timestamp=now_ms()))
    ext = {
        "offset": str(int(answer.ext_fields["msgId"][-16:], 16)), "group": GROUP, "delayLevel": level,
        "originMsgId": body.hex(), "originTopic": "F", "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    due_ms = now_ms() + 1000 * LEVEL_S[level]
    stored(await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext))
    return due_ms


async def take_over(address: str, due_ms: dict[bytes, int]) -> None:
    """Answer the checks of the transactions that another broker has left, and wait for its messages."""

    def decide(half: StoredMessage) -> int:
        return DECISIONS[half.body.decode().partition(": ")[2]]

    async with transaction_peer(address, decide) as producer:

        async def have_come() -> bool:
            return due_ms.keys() <= {message.body for message in await delivered(producer)}

        await wait_until(have_come, "everything that waited")
        for half in producer.checks:
            times = half.properties[PropertyName.TRANSACTION_CHECK_TIMES]
            assert int(times) >= 2, f"{half.body!r}: the count of the other broker's checks is lost"
        assert {half.body.partition(b": ")[2].decode() for half in producer.checks} == set(DECISIONS)


async def delivered(peer: Peer) -> list[StoredMessage]:
    """Return what came under the topic of the messages, and under the retry topic."""
    found: list[StoredMessage] = []
    for topic in ("T", RETRY):
        offset = 0
        while (answer := await peer.pull(topic, offset)).code == ResponseCode.SUCCESS:
            messages = list(iter_records(answer.body_bytes))
            found += messages
            offset = messages[-1].queue_offset + 1
    return found


async def assert_each_came_at_its_time(address: str, due_ms: dict[bytes, int], *, times_max: int) -> None:
    async with transaction_peer(address) as producer:
        found = await delivered(producer)
    assert {message.body.partition(b": ")[2] for message in found if message.topic == RETRY} == {b"sent back"}
    counts = Counter(message.body for message in found)
    assert counts.keys() == due_ms.keys()
    assert max(counts.values()) <= times_max, counts
    for message in found:
        early_ms = due_ms[message.body] - message.stored_at_ms
        assert early_ms < EARLY_MS_MAX, f"{message.body!r} came {early_ms} ms early"


@pytest.mark.java
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=["killed", "stopped"]
)
async def test_what_waits_goes_to_apaches_broker_and_back(tmp_path: Path, end: signal.Signals) -> None:
    ours = BrokerProcess(tmp_path, environment=OUR_SETTINGS)
    with ours:
        due_ms = await leave_waiting(ours.address, "ours")
        assert ours.terminate() == 0, ours.log
    with foreign.java_broker(tmp_path, ours.store, APACHES_SETTINGS, end=end) as (_, address):
        await take_over(address, due_ms)
        by_apache = await leave_waiting(address, "Apache's")
    with ours:
        await take_over(ours.address, by_apache)
        # A killed broker repeats what it delivered in the seconds before.
        times_max = 2 if end == signal.SIGKILL else 1
        await assert_each_came_at_its_time(ours.address, due_ms | by_apache, times_max=times_max)
        assert ours.terminate() == 0, ours.log
    assert_verifies(ours.store)
