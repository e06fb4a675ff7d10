"""The question whether an open transaction is committed or rolled back, and who can be asked."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from services.gateway.usecases.reading.messages import ReadMessage


@dataclass(slots=True)
class TransactionCheck:
    """A broker's question about an open transaction.

    Attributes:
        transaction: Id of the transaction.
        group: Its producer group.
        message: Its message, under its own topic and queue.
        checks: Number of times that the broker has asked, this time included.
        is_asked: Whether an asker has found somebody and sent the question. Askers set it.
    """

    transaction: str
    group: str
    message: ReadMessage
    checks: int
    is_asked: bool = False


class Asker(Protocol):
    """One way to ask the producers of a group."""

    async def ask(self, check: TransactionCheck) -> bool | None:
        """Return whether to commit; None if nobody of this kind can answer, or the answer is "unknown".

        Raises nothing that the caller handles.
        """
        ...

    def groups(self) -> Collection[str]:
        """Return the producer groups for which this asker may find somebody.

        The gateway is the producer of these groups at the brokers.
        """
        ...
