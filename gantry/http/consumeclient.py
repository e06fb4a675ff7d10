"""The methods of both clients that consume for a group by receipt.

    messages = client.pull("billing", "ORDERS", wait_ms=10_000).messages
    for message in messages:
        charge(message.json())
    client.ack("billing", [message.receipt for message in messages])

A message that is not acked within its invisible time is delivered again. `pull` may be repeated after a failure with the
same `attempt_id`: it gets the messages whose answer was lost.
"""

from collections.abc import Mapping, Sequence

from gantry.http import consumecalls
from gantry.http.baseclient import AsyncBaseClient, BaseClient
from gantry.http.consumeresults import Extensions, PulledMessages, ReceiptResult


class ConsumeClient(BaseClient):
    """Pull, ack, nack, extend."""

    def pull(
        self,
        group: str,
        topic: str,
        *,
        max_messages: int = 32,
        wait_ms: int = 0,
        invisible_ms: int = 60_000,
        expression: str | Mapping[str, str] = "*",
        orderly: bool = False,
        attempt_id: str | None = None,
    ) -> PulledMessages:
        """Take messages for a group, and hide them from its other consumers for `invisible_ms` (10 s to 12 h).

        Waits up to `wait_ms` if there is none yet. `expression` has tags separated by `||`, or is `{"sql": "…"}`.
        """
        return self.run(
            consumecalls.pull(
                group,
                topic,
                max_messages=max_messages,
                wait_ms=wait_ms,
                invisible_ms=invisible_ms,
                expression=expression,
                orderly=orderly,
                attempt_id=attempt_id,
            )
        )

    def ack(self, group: str, receipts: Sequence[str]) -> list[ReceiptResult]:
        """Acknowledge up to 1,000 messages; each receipt has its own result, in order."""
        return self.run(consumecalls.ack(group, receipts))

    def nack(self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None) -> list[ReceiptResult]:
        """Have messages delivered again after a delay; None stands for the group's retry policy."""
        return self.run(consumecalls.nack(group, receipts, delay_ms=delay_ms))

    def extend(self, group: str, receipts: Sequence[str], *, invisible_ms: int = 60_000) -> Extensions:
        """Keep messages invisible for `invisible_ms` from now on (10 s to 12 h); each gets a new receipt."""
        return self.run(consumecalls.extend(group, receipts, invisible_ms=invisible_ms))


class AsyncConsumeClient(AsyncBaseClient):
    """Pull, ack, nack, extend."""

    async def pull(
        self,
        group: str,
        topic: str,
        *,
        max_messages: int = 32,
        wait_ms: int = 0,
        invisible_ms: int = 60_000,
        expression: str | Mapping[str, str] = "*",
        orderly: bool = False,
        attempt_id: str | None = None,
    ) -> PulledMessages:
        """Take messages for a group, and hide them from its other consumers for `invisible_ms` (10 s to 12 h).

        Waits up to `wait_ms` if there is none yet. `expression` has tags separated by `||`, or is `{"sql": "…"}`.
        """
        return await self.run(
            consumecalls.pull(
                group,
                topic,
                max_messages=max_messages,
                wait_ms=wait_ms,
                invisible_ms=invisible_ms,
                expression=expression,
                orderly=orderly,
                attempt_id=attempt_id,
            )
        )

    async def ack(self, group: str, receipts: Sequence[str]) -> list[ReceiptResult]:
        """Acknowledge up to 1,000 messages; each receipt has its own result, in order."""
        return await self.run(consumecalls.ack(group, receipts))

    async def nack(self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None) -> list[ReceiptResult]:
        """Have messages delivered again after a delay; None stands for the group's retry policy."""
        return await self.run(consumecalls.nack(group, receipts, delay_ms=delay_ms))

    async def extend(self, group: str, receipts: Sequence[str], *, invisible_ms: int = 60_000) -> Extensions:
        """Keep messages invisible for `invisible_ms` from now on (10 s to 12 h); each gets a new receipt."""
        return await self.run(consumecalls.extend(group, receipts, invisible_ms=invisible_ms))
