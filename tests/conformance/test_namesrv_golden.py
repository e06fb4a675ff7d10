"""Our name server gives the recorded answers to the requests of Apache RocketMQ's brokers and tools.

The recording keeps examples in order. It has two runs that both start from nothing; the second one, after a restart of
the name server, has connections from 1001 on. Answers are compared by meaning: lists made from Java's sets have no
order.
"""

import gzip
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantry.remoting.bodies.fastjson import to_strict_json
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand, decode_frame
from services.namesrv.kvconfig import KvConfig
from services.namesrv.processor import Processor
from services.namesrv.routetable import RouteTable
from services.namesrv.settings import NamesrvSettings
from tests.support.virtualtime import FakeClock

FRAMES = Path(__file__).parent / "golden" / "frames.jsonl.gz"
SECOND_RUN = 1001
# Each server has settings of its own.
BODIES_NOT_COMPARED = frozenset({RequestCode.GET_NAMESRV_CONFIG})
# The recorded examples do not include every registration, so some topics are missing here.
TOPIC_LISTS = frozenset({RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER})


class Connection:
    """The connection of a registration."""

    close_reason = ""

    def close(self, reason: str) -> None:
        self.close_reason = reason


def frames(*, second_run: bool) -> Iterator[dict[str, Any]]:
    with gzip.open(FRAMES, "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            if "namesrv" in frame["peer"] and (frame["conn"] >= SECOND_RUN) == second_run:
                yield frame


async def save(data: bytes) -> None:
    assert json.loads(data) is not None


def meaning(body: bytes | None) -> Any:
    if not body:
        return None
    return unordered(json.loads(to_strict_json(body)))


def unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unordered(member) for key, member in value.items()}
    if isinstance(value, list):
        return sorted((unordered(member) for member in value), key=json.dumps)
    return value


def command(frame: dict[str, Any]) -> RemotingCommand:
    return decode_frame(bytes.fromhex(frame["frame_hex"])[4:])


@pytest.mark.parametrize("second_run", [False, True], ids=["first-run", "second-run"])
async def test_every_recorded_request_is_answered_alike(second_run: bool):
    processor = Processor(
        NamesrvSettings(),
        RouteTable(),
        KvConfig({}, save),
        clock=FakeClock(),
        notify=lambda address, command: None,
        save_changes=save,
    )
    handlers, connections = processor.handlers(), {}
    answers: dict[tuple[int, int], tuple[int, RemotingCommand]] = {}
    compared = 0
    for frame in frames(second_run=second_run):
        asked = command(frame)
        key = (frame["conn"], asked.opaque)
        if frame["dir"] != "response":
            if frame["code"] in handlers:
                connection = connections.setdefault(frame["conn"], Connection())
                answer = handlers[frame["code"]](connection, asked)
                answers[key] = (frame["code"], await answer if inspect.isawaitable(answer) else answer)
        elif key in answers:
            code, answer = answers.pop(key)
            where = f"{frame['case']}: {frame['code_name']}"
            assert (answer.code, answer.ext_fields) == (asked.code, asked.ext_fields), where
            if code in TOPIC_LISTS:
                ours, theirs = meaning(answer.body)["topicList"], meaning(asked.body)["topicList"]
                assert set(ours) <= set(theirs), where
            elif code not in BODIES_NOT_COMPARED:
                assert meaning(answer.body) == meaning(asked.body), where
            compared += 1
    assert compared > 30
