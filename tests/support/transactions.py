"""A producer of transactions against a broker unit: it sends half messages, decides them, and answers checks."""

from collections.abc import Callable
from typing import Any

from gantry.model import sysflag
from gantry.model.message import StoredMessage
from gantry.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantry.model.record import decode_record, iter_records
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from tests.support.brokerunit import BrokerUnit

COMMIT, ROLLBACK, UNKNOWN = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, sysflag.TRANSACTION_NONE
HALF, OP, GIVEN_UP = TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC


class TransactionProducer:
    """A producer of group `pg` with a connection of its own.

    Attributes:
        checks: The checks that it got: header and half message.
        decide: Function that returns the answer to a check.
    """

    def __init__(
        self, unit: BrokerUnit, *, group: str = "pg", decide: Callable[[StoredMessage], int] = lambda half: UNKNOWN
    ) -> None:
        self.unit = unit
        self.group = group
        self.decide = decide
        self.checks: list[tuple[CheckTransactionStateHeader, StoredMessage]] = []
        self.connection = unit.connect({RequestCode.CHECK_TRANSACTION_STATE: self._checked})

    async def join(self) -> None:
        """Send a heart-beat, so that the broker knows the producer."""
        body = HeartbeatData(f"{id(self)}@1", (self.group,), ()).encode()
        answer = await self.unit.ask(RequestCode.HEART_BEAT, body=body, connection=self.connection)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def begin(self, topic: str = "T", body: bytes = b"hello", **changes: Any) -> RemotingCommand:
        """Send a half message and return the answer."""
        properties = {"TRAN_MSG": "true", "PGROUP": self.group, **changes.pop("properties", {})}
        values = {"born_timestamp": self.unit.clock.now_ms(), "sys_flag": sysflag.TRANSACTION_PREPARED, **changes}
        answer = await self.unit.send(topic, body, properties=properties, **values)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def end(self, half: RemotingCommand, decision: int, **changes: Any) -> RemotingCommand:
        """Decide the transaction of a half message's answer, and return the answer."""
        values: dict[str, Any] = {
            "producer_group": self.group,
            "tran_state_table_offset": int(half.ext_fields["queueOffset"]),
            "commit_log_offset": int(half.ext_fields["msgId"][-16:], 16),
            "commit_or_rollback": decision,
            "msg_id": half.ext_fields["transactionId"],
            "from_transaction_check": False,
        }
        return await self.unit.ask(RequestCode.END_TRANSACTION, EndTransactionHeader(**{**values, **changes}))

    def _checked(self, channel: Any, request: RemotingCommand) -> None:
        header = CheckTransactionStateHeader.from_ext(request.ext_fields)
        half = decode_record(request.body_bytes)
        self.checks.append((header, half))
        decision = self.decide(half)
        answer = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=decision,
            msg_id=half.message_id,
            from_transaction_check=True,
        )
        channel.send_one_way(RemotingCommand.request(RequestCode.END_TRANSACTION, answer, one_way=True))


def messages(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Return all readable messages of a queue."""
    store = unit.store
    found: list[StoredMessage] = []
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while offset < end:
        result = store.get(topic, queue_id, offset, 32)
        found += iter_records(result.body)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def bodies(unit: BrokerUnit, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of all readable messages of a queue."""
    return [message.body for message in messages(unit, topic, queue_id)]
