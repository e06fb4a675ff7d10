"""A broker whose store is lost saves no table, because the files in config/ are another broker's by now."""

import asyncio

import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit

STORE = "/data/store"


async def change_everything(unit: BrokerUnit) -> list[int]:
    """Change all config files' tables, wait until they would be written, and return the codes of the answers."""
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    answers = [await unit.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)]
    answers += [await unit.send("T2"), await unit.send("T")]
    answers += [await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})]
    answers += [await unit.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=7")]
    await asyncio.sleep(30)
    return [answer.code for answer in answers]


@pytest.mark.parametrize("is_moved", [True, False])
async def test_no_table_is_saved_to_a_lost_store(is_moved):
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        assert (await unit.send("T")).code == ResponseCode.SUCCESS
        await asyncio.sleep(30)
        if is_moved:
            unit.files.move(STORE, "/moved")
        else:
            unit.files.remove(f"{STORE}/lock")
            unit.files.lock(f"{STORE}/lock")
        before = unit.files.content("/data")
        codes = await change_everything(unit)
        assert ResponseCode.SUCCESS not in codes[1:], "only the commit is answered from memory"
        assert unit.files.content("/data") == before
    assert unit.files.content("/data") == before, "nor at the stop"
