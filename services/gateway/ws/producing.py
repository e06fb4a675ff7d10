"""The producer groups of a stream, and the questions about open transactions that it is asked. Pure.

hello with producer_groups ──▶ Produce       the gateway may now ask this stream (producers.py)
ask ──▶ check frame ──▶ check_result ──▶ done(decision)
"""

from collections.abc import Callable
from typing import Final

from gantry.model.errors import InvalidNameError
from gantry.model.names import check_group, is_system_group
from services.gateway.errors import TOO_LARGE, UNKNOWN_TRANSACTION, ProblemError, invalid, reserved_name
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, Produce, Rights

GROUPS_MAX: Final = 16
"""Limit of producer groups of one stream."""
PENDING_MAX: Final = 100
"""Limit of questions that a stream has not answered."""

Done = Callable[[bool | None], None]
"""Receives the decision: whether to commit; None if it is unknown, or the stream has ended."""


class TransactionChecks:
    """The questions to one stream.

    Attributes:
        groups: Producer groups for which the stream answers.
    """

    def __init__(self, answers: Answers, rights: Rights) -> None:
        self.groups: frozenset[str] = frozenset()
        self._answers = answers
        self._rights = rights
        self._pending: dict[str, Done] = {}
        self._is_closed = False

    def hello(self, frame: frames.Hello) -> list[Effect]:
        """Take the producer groups of a hello. Raises ProblemError (400, 403, 413)."""
        if not frame.producer_groups:
            return []
        if len(frame.producer_groups) > GROUPS_MAX:
            detail = f"producer_groups: {len(frame.producer_groups)} exceed the limit of {GROUPS_MAX}"
            raise ProblemError(TOO_LARGE, detail, field="/producer_groups")
        self._rights.require_producer()
        for at, group in enumerate(frame.producer_groups):
            field = f"/producer_groups/{at}"
            if is_system_group(group):
                raise reserved_name(field, group)
            try:
                check_group(group)
            except InvalidNameError as error:
                raise invalid(field, group, error.reason) from None
        self.groups = frozenset(frame.producer_groups)
        return [Produce(self.groups)]

    def may_ask(self, check: TransactionCheck) -> bool:
        """Return whether the stream can be asked: its key may publish to the topic, and it is not asked already."""
        if self._is_closed or len(self._pending) >= PENDING_MAX or check.transaction in self._pending:
            return False
        try:
            self._rights.require_publish(check.message.record.topic)
        except ProblemError:
            return False
        return True

    def ask(self, check: TransactionCheck, done: Done) -> list[Effect]:
        """Return the check frame; `done` is called once, unless the question is dropped."""
        assert self.may_ask(check), "the caller has looked"
        self._pending[check.transaction] = done
        return [self._answers.check(check)]

    def drop(self, transaction: str) -> None:
        """Stop waiting for an answer."""
        self._pending.pop(transaction, None)

    def answer(self, frame: frames.CheckResult) -> list[Effect]:
        """Process an answer. Raises ProblemError (404): the stream is not asked about this transaction."""
        done = self._pending.pop(frame.transaction, None)
        if done is None:
            detail = f"transaction: this stream is not asked about {frame.transaction[:64]!r}, or answers too late"
            raise ProblemError(UNKNOWN_TRANSACTION, detail, field="/transaction")
        done({"commit": True, "rollback": False}.get(frame.decision))
        return []

    def end(self) -> None:
        """Answer all questions with None, because the stream has ended."""
        self._is_closed = True
        while self._pending:
            self._pending.popitem()[1](None)
