"""Unmodified push consumers of Apache RocketMQ's Java client in pop mode against our broker."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gantry.remoting.bodies import MessageRequestMode
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of

MESSAGES = 40


async def prepare(broker: str) -> None:
    async with peer_of(broker) as peer:
        await peer.make_topic("PopTopic")
        body = b'{"groupName":"GID_pop"}'
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == ResponseCode.SUCCESS
        mode = MessageRequestMode(consumer_group="GID_pop", mode="POP", topic="PopTopic")
        assert (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode.encode())).code == ResponseCode.SUCCESS


async def left(broker: str) -> int:
    """Return how many messages a pop still gets after all receipts."""
    ext = {
        "consumerGroup": "GID_pop", "topic": "PopTopic", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "1000",
        "pollTime": "0", "bornTime": "0", "initMode": "0", "exp": "even || odd",
    }  # fmt: skip
    async with peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.POP_MESSAGE, ext=ext)
        return 0 if answer.code == ResponseCode.POLLING_TIMEOUT else len(answer.body_bytes)


@pytest.mark.java
def test_two_push_consumers_pop_every_message_once(tmp_path: Path) -> None:
    with NamesrvProcess(tmp_path) as namesrv, BrokerProcess(tmp_path, namesrv=namesrv.address) as broker:
        asyncio.run(prepare(broker.address))
        received = foreign.java_pop(namesrv.address, str(MESSAGES))
        done = Counter(line["body"] for line in received if not line["fails"])
        assert done == Counter({f"m{number}": 1 for number in range(MESSAGES)})
        assert {line["topic"] for line in received} == {"PopTopic"}
        assert {line["consumer"] for line in received} == {"one", "two"}
        first, again = (line for line in received if line["body"] == "m3")
        assert (first["fails"], first["times"], again["times"]) == (True, 0, 1)
        assert again["at_ms"] - first["at_ms"] >= 9_000, "the client asks for a delay of 10 s"
        assert asyncio.run(left(broker.address)) == 0
