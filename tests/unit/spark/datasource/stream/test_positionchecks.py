"""The queries to brokers about queues, and the conclusions from their answers."""

import pytest
from structlog.testing import capture_logs

from gantry.client.backlog import FirstUnconsumed
from gantry.client.engine import ClientEngine
from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData
from gantry.remoting.bodies.backlog import FirstUnconsumedQueries, FirstUnconsumedResult, FirstUnconsumedResults
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from spark.datasource.brokers.topicqueues import QueueBounds, TopicQueues, find_queues
from spark.datasource.dataloss import DataLossError, Loss, report_losses
from spark.datasource.options import read_options
from spark.datasource.pushdown import Pushed
from spark.datasource.stream.offsets import MessageIdentity, StreamPosition
from spark.datasource.stream.positionchecks import (
    MessageAnswers,
    ask_messages,
    find_hidden,
    find_suspects,
    queried_positions,
)
from tests.support.scriptedpeer import Script, ScriptedCluster, ScriptedOutcome, ok, refuse

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
ANY = MessageIdentity(0)
PLACE = ("T", "broker-a")


def head(offset: int | None, held: tuple[int, int], identity: MessageIdentity = ANY) -> FirstUnconsumed:
    return FirstUnconsumed(*held, offset, identity.physical_offset, 9, 0, identity.stored_at_ms, None, False, None, 0)


def test_a_batch_requests_unknown_marks_only() -> None:
    last = MessageIdentity(900, 50)
    starts = {A: StreamPosition(5, last=last), B: StreamPosition(7, last=last)}
    found = TopicQueues({A: QueueBounds(0, 9), B: QueueBounds(0, 7)}, readable={PLACE: frozenset({0, 1})})
    ends = {A: StreamPosition(9, first=5), B: StreamPosition(7, last=last)}
    # The end is requested first: a queue created again between both answers shows at its start.
    assert list(queried_positions(starts, found, ends, {})) == [(A, 8), (A, 4), (B, 6)]
    checked = {queue: (starts[queue], held) for queue, held in found.ends.items()}
    assert list(queried_positions(starts, found, ends, checked)) == [(A, 8), (A, 4)]
    found.ends[A], found.readable[PLACE] = QueueBounds(5, 9), frozenset({0})
    # The last message read may be gone; queue 1 left the topic.
    del found.ends[B]
    assert list(queried_positions(starts, found, ends, checked)) == [(A, 8), (B, 7)]
    found.stand_ins.add(PLACE)
    found.readable.clear()
    assert list(queried_positions(starts, found, ends, {})) == []


@pytest.mark.parametrize(
    ("there", "suspect"),
    [
        (head(4, (0, 9), MessageIdentity(900, 50)), False),
        (head(4, (0, 9), MessageIdentity(900, None)), False),
        (head(4, (0, 9), MessageIdentity(901, 50)), True),
        (head(4, (0, 9), MessageIdentity(900, 51)), True),
        (head(None, (0, 3)), True),
        (head(6, (6, 9)), False),
        (None, False),
    ],
)
def test_another_message_in_place_of_the_last_one_read_is_suspect(there: FirstUnconsumed | None, suspect: bool) -> None:
    starts, found = {A: StreamPosition(5, last=MessageIdentity(900, 50))}, TopicQueues({A: QueueBounds(0, 9)})
    answers = MessageAnswers({} if there is None else {(A, 4): there})
    assert find_suspects(starts, found, answers) == ({A} if suspect else set())
    found.stand_ins.add(PLACE)
    assert find_suspects(starts, found, answers) == set()


def test_a_queue_is_hidden_only_if_its_broker_says_so() -> None:
    starts, found = (
        {A: StreamPosition(5), B: StreamPosition(7)},
        TopicQueues({A: QueueBounds(0, 9)}, readable={PLACE: frozenset({0})}),
    )
    assert find_hidden(starts, found, MessageAnswers()) == {}
    assert find_hidden(starts, found, MessageAnswers({(B, 7): head(None, (0, 8))})) == {B: QueueBounds(0, 8)}
    nothing = FirstUnconsumed(None, None, None, None, None, None, None, None, False, "topic T has 1 queues", 0)
    assert find_hidden(starts, found, MessageAnswers({(B, 7): nothing})) == {B: QueueBounds(0, 0)}
    found.readable.clear()
    assert find_hidden(starts, found, MessageAnswers({(B, 7): nothing})) == {}


async def test_brokers_without_the_request_and_unreachable_brokers(
    engine: ClientEngine, cluster: ScriptedCluster
) -> None:
    cluster.topic("T", "broker-a", "broker-b", "broker-c")

    def heads(request: RemotingCommand) -> ScriptedOutcome:
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        found = [
            FirstUnconsumedResult(queue_offset=each.offset, physical_offset=7, min_offset=0, max_offset=9)
            for each in queries
        ]
        return ok(request, body=FirstUnconsumedResults(broker_name="broker-a", heads=found, now_ms=0).encode())

    cluster.transport.at("broker-a:10911", {RequestCode.GANTRY_FIRST_UNCONSUMED: heads})
    cluster.transport.down("broker-c:10911")
    answers = await ask_messages(engine, [(MessageQueue("T", f"broker-{name}", 0), 3) for name in "abc"])
    assert (answers.identity(A, 3), answers.held(A, 3), len(answers.heads)) == (
        MessageIdentity(7),
        QueueBounds(0, 9),
        1,
    )
    assert answers.unreachable.keys() == {"broker-c"}
    found = TopicQueues({A: QueueBounds(0, 9)}, readable={PLACE: frozenset({0})})
    found.discard("broker-a", "no answer")
    assert (found.ends, found.readable, found.unknown) == ({}, {}, {PLACE: "no answer"})


@pytest.mark.parametrize("is_master", [True, False])
async def test_only_a_master_reports_that_a_topic_is_gone(
    engine: ClientEngine, cluster: ScriptedCluster, *, is_master: bool
) -> None:
    cluster.topic("T", "broker-a")
    cluster.registered["broker-a"] = BrokerData("C", "broker-a", {0 if is_master else 1: "broker-a:10911"})
    options = read_options({"kind": "messages", "namesrv": "ns:1", "topics": "T"})

    async def answered(script: Script) -> TopicQueues:
        cluster.transport.at("broker-a:10911", {RequestCode.GANTRY_QUEUE_STATES: script})
        return await find_queues(engine, options, Pushed(), also=[PLACE])

    gone = await answered(refuse(ResponseCode.TOPIC_NOT_EXIST))
    assert (gone.gone, gone.unknown.keys()) == (({PLACE}, set()) if is_master else (set(), {PLACE}))
    states = QueueStates(
        broker_name="broker-a", queues=[QueueState(queue_id=0), QueueState(queue_id=1, readable=False)]
    )
    there = await answered(lambda request: ok(request, body=states.encode()))
    assert there.ends == {A: QueueBounds(0, 0)}
    assert there.readable == ({PLACE: frozenset({0})} if is_master else {})
    assert there.stand_ins == (set() if is_master else {PLACE})


def test_an_error_and_the_log_have_limits() -> None:
    losses = [Loss(MessageQueue("T", "b", number), 5, "nothing", None, "gone") for number in range(300)]
    with pytest.raises(DataLossError, match=r"queue 7: .*; and 292 more queues\. To continue .* failOnDataLoss"):
        report_losses(losses, is_failure=True)
    with capture_logs() as lines:
        report_losses(losses, is_failure=False)
    assert sum("their number is unknown" in line.get("lost", "") for line in lines) == 256
    assert lines[-1]["queues"] == 44
    report_losses([], is_failure=True)
