"""Notes what is not known about a message, and why. Pure."""

from collections.abc import Mapping
from typing import Final

from gantry.model.message import StoredMessage
from services.gateway.errors import ProblemError
from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.lives.facts import Copy

SAME_ID_MAX: Final = 32
"""Number of records with one id that a broker returns by default. If it returns as many, there may be more."""


class Missing:
    """The notes.

    Attributes:
        problem: The problem of brokers that did not answer, for an answer that has nothing else; None if all did.
        silent: Brokers that did not answer. They are not asked again, because each request may take its whole time-out.
    """

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.problem: ProblemError | None = None
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> list[str]:
        """Return the notes, each once."""
        return list(self._texts)

    def add(self, text: str) -> None:
        """Add a note."""
        self._texts[text] = None

    def failures(self, failures: Mapping[str, str]) -> None:
        """Note the brokers that did not answer."""
        self.silent.update(failures)
        for broker in sorted(failures):
            self.add(f"{failures[broker]}; what {broker} knows about the message is missing")

    def copies(self, asked: BrokerAnswers[list[StoredMessage]], topic: str) -> list[Copy]:
        """Return the records that brokers found, oldest first, and note what may be missing."""
        if asked.failures and self.problem is None:
            self.problem = asked.problem()
        self.failures(asked.failures)
        found: list[Copy] = []
        for broker, records in asked.answers.items():
            if len(records) >= SAME_ID_MAX:
                self.add(f"only the newest {len(records)} records of {topic} on {broker} were read")
            found += [Copy(record, broker) for record in records]
        return sorted(found, key=lambda copy: (copy.record.stored_at_ms, copy.broker, copy.record.physical_offset))
