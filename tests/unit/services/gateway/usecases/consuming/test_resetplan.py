"""Plans of resets: what an undo says when brokers refuse it."""

from gantry.model.message import MessageQueue
from services.gateway.usecases.consuming.resetplan import PLANNED, QueueMove, named_refusals, refused_move


def moves(broker: str, count: int) -> list[QueueMove]:
    return [QueueMove(MessageQueue("T", broker, number), PLANNED) for number in range(count)]


def test_the_reason_of_a_broker_is_named_once_for_all_its_queues() -> None:
    refused = [refused_move(move, "queue a/0: moved since") for move in moves("a", 4)]
    refused += [refused_move(move, "queue b/2: reset again") for move in moves("b", 4)]
    assert named_refusals(refused) == (
        "queue a/0: moved since; no queue of broker a was reset; queue b/2: reset again; no queue of broker b was reset"
    )


def test_an_undo_names_a_few_reasons() -> None:
    refused = [refused_move(move, f"reason {broker}") for broker in "abcdefgh" for move in moves(broker, 2)]
    assert named_refusals(refused).count("reason") == 5
    assert named_refusals(moves("a", 2)) == ""
