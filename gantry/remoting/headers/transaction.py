"""Transactional messages: 37 ends a transaction, 39 asks its producer, 323 checks it again; 900003 and 900004 are Gantry's.

`commit_or_rollback` has the values of the transaction bits of sysFlag: 8 commits, 12 rolls back, 0 leaves it open.
"""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64

OPEN_TRANSACTIONS_MAX = 256
"""The maximum number of transactions in one response to 900003."""


class EndTransactionHeader(Header):
    """37: the decision of a producer. The half message is named by its place in the log and in the half topic."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    """The UNIQ_KEY of the message."""
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class CheckTransactionStateHeader(Header):
    """39: the half message whose state the broker asks for. The reply is a one-way request 37 with these offsets."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    """The UNIQ_KEY of the message."""
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    """The half topic, not the topic of the message. A broker of release 4 leaves it out."""
    broker_name: str | None = msgspec.field(name="bname", default=None)


class ResumeCheckHalfMessageHeader(Header):
    """323: the stored id of a half message, or of a message that was checked too often."""

    msg_id: str
    topic: str | None = None


class OpenTransactionsHeader(Header):
    """900003: list transactions that are not decided.

    Attributes:
        offset: The queue offset of the half topic to start at: `next_offset` of the last response, or 0.
        max_transactions: The maximum number of transactions.
    """

    offset: Int64 = 0
    max_transactions: Int32 | None = None


class TransactionDecisionHeader(Header):
    """900004: the UNIQ_KEY of the message whose decision is asked for."""

    message_id: str
