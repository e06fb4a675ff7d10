"""A producer of transactions against a broker process: it sends half messages, decides them, and answers checks."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gantry.model import sysflag
from gantry.model.message import StoredMessage
from gantry.model.record import decode_record
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from tests.support.brokerprocess import Peer

COMMIT, ROLLBACK, UNKNOWN = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, sysflag.TRANSACTION_NONE


def now_ms() -> int:
    """Return the time of the machine, by which the brokers deliver."""
    return time.time_ns() // 1_000_000


class TransactionPeer(Peer):
    """A producer of group `pg` with a connection of its own.

    Attributes:
        checks: The half messages that the broker asked about.
    """

    def __init__(self, address: str, decide: Callable[[StoredMessage], int], *, group: str = "pg") -> None:
        super().__init__(address, {RequestCode.CHECK_TRANSACTION_STATE: self._checked})
        self.group = group
        self.checks: list[StoredMessage] = []
        self._decide = decide

    async def join(self) -> None:
        """Send a heart-beat, so that the broker knows the producer."""
        answer = await self.ask(RequestCode.HEART_BEAT, body=HeartbeatData(f"{id(self)}@1", (self.group,)).encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def store(self, body: bytes, **properties: str) -> RemotingCommand:
        """Send a message with properties, and return the answer."""
        return await self.send(body=body, properties={"UNIQ_KEY": body.hex(), **properties}, born_timestamp=now_ms())

    async def begin(self, body: bytes) -> RemotingCommand:
        """Send a half message and return the answer."""
        properties = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": body.hex()}
        prepared = sysflag.TRANSACTION_PREPARED
        return await self.send(body=body, properties=properties, born_timestamp=now_ms(), sys_flag=prepared)

    async def end(self, half: RemotingCommand, decision: int) -> RemotingCommand:
        """Decide the transaction of a half message's answer, and return the answer."""
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=int(half.ext_fields["queueOffset"]),
            commit_log_offset=int(half.ext_fields["msgId"][-16:], 16),
            commit_or_rollback=decision,
            msg_id=half.ext_fields["transactionId"],
            from_transaction_check=False,
        )
        return await self.ask(RequestCode.END_TRANSACTION, header)

    def _checked(self, channel: Channel, request: RemotingCommand) -> None:
        header = CheckTransactionStateHeader.from_ext(request.ext_fields)
        half = decode_record(request.body_bytes)
        self.checks.append(half)
        answer = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=self._decide(half),
            msg_id=half.message_id,
            from_transaction_check=True,
        )
        channel.send_one_way(RemotingCommand.request(RequestCode.END_TRANSACTION, answer, one_way=True))


@asynccontextmanager
async def transaction_peer(
    address: str, decide: Callable[[StoredMessage], int] = lambda half: UNKNOWN
) -> AsyncIterator[TransactionPeer]:
    """Open a producer that the broker knows, and close it at the end of the block."""
    peer = TransactionPeer(address, decide)
    try:
        await peer.join()
        yield peer
    finally:
        await peer.client.close()
