"""Promises of request-reply, as with Apache's broker."""

import gzip
import json
from pathlib import Path
from typing import Any

from gantry.model.message import decode_properties
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand, decode_frame
from tests.support.brokerunit import BrokerUnit
from tests.support.connectionpair import ConnectionPair

FRAMES = Path(__file__).parents[1] / "golden" / "frames.jsonl.gz"
TOPIC = "GoldenCluster_REPLY_TOPIC"
ASKER = "192.0.2.2@PIDQ_Golden-Golden20240501"
# These depend on the moment, the addresses, and the messages that were stored before.
VARIES = {"storeTimestamp", "bornHost", "storeHost", "msgId", "queueOffset"}


def captured(case: str, *codes: int) -> list[RemotingCommand]:
    with gzip.open(FRAMES, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["case"] == case and row["code"] in codes]
    return [decode_frame(bytes.fromhex(row["frame_hex"])[4:]) for row in rows]


class Asker:
    def __init__(self, unit: BrokerUnit) -> None:
        self.pushed: list[RemotingCommand] = []
        self.pair: ConnectionPair = unit.connect({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take})

    async def join(self, unit: BrokerUnit) -> None:
        body = HeartbeatData(ASKER, ("PIDQ_Golden",)).encode()
        await unit.ask(RequestCode.HEART_BEAT, body=body, connection=self.pair)

    def _take(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.pushed.append(request)
        return RemotingCommand.response_to(request, 0)


def same_kind(fields: dict[str, str]) -> dict[str, Any]:
    """Return ext fields without those that vary, and with decoded properties."""
    kept: dict[str, Any] = {name: value for name, value in fields.items() if name not in VARIES}
    if "properties" in kept:
        kept["properties"] = decode_properties(kept["properties"].encode())
        assert kept["properties"].pop("PUSH_REPLY_TIME") == fields["storeTimestamp"]
    return kept


async def test_the_client_that_asked_gets_the_reply_with_the_fields_of_apaches_broker() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic(TOPIC, queues=1)
        asker = Asker(unit)
        await asker.join(unit)
        exchanges = captured("request-reply sync", 325)
        pushes = [each for each in captured("request-reply sync", 326) if not each.is_response]
        assert len(exchanges) == 2 * len(pushes) == 6
        for request, response, push in zip(exchanges[::2], exchanges[1::2], pushes, strict=True):
            answer = await unit.ask(request.code, ext=request.ext_fields, body=request.body_bytes)
            assert (answer.code, answer.remark) == (response.code, response.remark) == (0, None)
            assert set(answer.ext_fields) == set(response.ext_fields)
            assert same_kind(answer.ext_fields) == same_kind(response.ext_fields)
            got = asker.pushed[-1]
            assert (got.code, got.body_bytes) == (push.code, push.body_bytes)
            assert set(got.ext_fields) == set(push.ext_fields)
            assert same_kind(got.ext_fields) == same_kind(push.ext_fields)
        assert len(asker.pushed) == 3


async def test_a_reply_to_a_client_that_is_gone_says_so_and_where_it_is_stored() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic(TOPIC, queues=1)
        for case, code in (("raw send reply v1, receiver offline", 324), ("request-reply consumer start", 325)):
            rows = captured(case, code)
            for request, response in zip(rows[::2], rows[1::2], strict=True):
                answer = await unit.ask(request.code, ext=request.ext_fields, body=request.body_bytes)
                assert (answer.code, answer.remark) == (response.code, response.remark)
                assert set(answer.ext_fields) == set(response.ext_fields)


async def test_a_reply_to_a_queue_that_the_topic_does_not_have_is_refused() -> None:
    async with BrokerUnit() as unit:
        await unit.make_topic(TOPIC, queues=1)
        request, response = captured("request-reply", 325)[:2]
        answer = await unit.ask(request.code, ext=request.ext_fields, body=request.body_bytes)
        assert (answer.code, answer.ext_fields) == (response.code, response.ext_fields)
        assert str(answer.remark).startswith("request queueId[2] is illegal, ")
