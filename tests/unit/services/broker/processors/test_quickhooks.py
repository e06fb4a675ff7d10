"""Quick hooks: a send with encoded properties stores the same bytes, and gets the same answer, as with send hooks."""

from typing import Any

import pytest

from gantry.model.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit, send_header

KEY = "UNIQ_KEY\x01C0A8000100002A139055000000000001\x02"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
SENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a level": (KEY + "TAGS\x01a\x02DELAY\x013\x02KEYS\x01k l\x02", {}),
    "a level, first and alone": ("DELAY\x0118\x02", {}),
    "a level, not terminated": (KEY + "DELAY\x013", {}),
    "level 0": (KEY + "DELAY\x010\x02", {}),
    "a level beyond the last one": (KEY + "DELAY\x0119\x02", {}),
    "a level with a leading zero": (KEY + "DELAY\x0103\x02", {}),
    "a level that is no number": (KEY + "DELAY\x01x\x02", {}),
    "an empty level": (KEY + "DELAY\x01\x02", {}),
    "two levels": (KEY + "DELAY\x013\x02DELAY\x014\x02", {}),
    "a level and a set time": (KEY + "DELAY\x013\x02TIMER_DELAY_SEC\x015\x02", {}),
    "a set time and a level": (KEY + "TIMER_DELAY_SEC\x015\x02DELAY\x013\x02", {}),
    "a level without a wait for the disk": (KEY + "DELAY\x013\x02WAIT\x01false\x02", {}),
    "a level with a region": (KEY + "DELAY\x013\x02MSG_REGION\x01elsewhere\x02", {}),
    "a level and a real topic": (KEY + "REAL_TOPIC\x01other\x02DELAY\x013\x02REAL_QID\x017\x02", {}),
    "a level and an empty property": (KEY + "a\x01\x02DELAY\x013\x02", {}),
    "a level and a value with a separator": (KEY + "a\x01b\x01c\x02DELAY\x013\x02", {}),
    "a level and characters": (KEY + "a\x01köln 東京\x02DELAY\x013\x02", {}),
    "a level and an empty tag": (KEY + "TAGS\x01\x02DELAY\x013\x02", {}),
    "a retry with a level": (KEY + "DELAY\x013\x02", {"topic": "%RETRY%g", "reconsume_times": 2}),
    "a first retry with a level": (KEY + "DELAY\x013\x02", {"topic": "%RETRY%g"}),
    "a half message": (KEY + "TAGS\x01a\x02" + HALF, {"sys_flag": 4}),
    "a half message without a key": (HALF, {"sys_flag": 4}),
    "a half message without a flag": (KEY + HALF, {}),
    "a compressed half message": (KEY + HALF, {"sys_flag": 5}),
    "a half message in capitals": (KEY + "TRAN_MSG\x01TRUE\x02PGROUP\x01pg\x02", {}),
    "no half message": (KEY + "TRAN_MSG\x01false\x02PGROUP\x01pg\x02", {}),
    "a half message without a group": (KEY + "TRAN_MSG\x01true\x02", {"sys_flag": 4}),
    "a half message with an empty group": (KEY + "PGROUP\x01\x02TRAN_MSG\x01true\x02", {"sys_flag": 4}),
    "a half message with a level": (KEY + HALF + "DELAY\x013\x02", {"sys_flag": 4}),
    "a half message with a transaction id": (KEY + "__transactionId__\x01t\x02" + HALF, {"sys_flag": 4}),
    "a half message with long properties": (KEY + f"a\x01{'x' * 32_000}\x02" + HALF, {"sys_flag": 4}),
    "a half message with too long properties": (KEY + f"a\x01{'x' * 32_450}\x02" + HALF, {"sys_flag": 4}),
}


async def sent(properties: str, changes: dict[str, Any], *, with_quick_hooks: bool) -> tuple[Any, ...]:
    """Return the answer to a send and everything that it has stored."""
    async with BrokerUnit() as unit:
        if not with_quick_hooks:
            unit.broker.quick_hooks.clear()
        await unit.make_topic()
        await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        header = send_header(properties=properties, **changes)
        answer = await unit.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"hello")
        records, at = [], 0
        while (record := unit.store.record_at(at)) is not None:
            records.append(record)
            at += len(record)
        flows = {topic: (flow.messages, flow.calls, flow.size_bytes) for topic, flow in unit.broker.stats.put_items()}
        queues = {
            queue: unit.store.units(*queue, 0, 10)
            for queue in ((SCHEDULE_TOPIC, 2), (SCHEDULE_TOPIC, 17), (TRANS_HALF_TOPIC, 0), ("T", 0))
        }
        figures = {figure.name: figure.value() for figure in unit.broker.figures if "half" in figure.name}
        return answer.code, answer.remark, answer.ext_fields, records, flows, queues, figures


@pytest.mark.parametrize("name", SENDS)
async def test_a_quick_hook_does_what_the_send_hooks_do(name: str) -> None:
    properties, changes = SENDS[name]
    quick = await sent(properties, changes, with_quick_hooks=True)
    assert quick == await sent(properties, changes, with_quick_hooks=False)


@pytest.mark.parametrize("name", ["a level", "a half message"])
async def test_a_usual_message_passes_no_send_hook(name: str) -> None:
    properties, changes = SENDS[name]
    async with BrokerUnit() as unit:
        await unit.make_topic()
        unit.broker.send_hooks.clear()
        answer = await unit.send(properties=properties, **changes)
        assert answer.code == ResponseCode.SUCCESS
        assert unit.store.max_offset("T", 0) == 0
