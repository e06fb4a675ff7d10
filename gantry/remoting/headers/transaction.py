"""Transactional messages: 37 ends a transaction, 39 asks its producer, 323 checks it again.

`commit_or_rollback` has the values of the transaction bits of sysFlag: 8 commits, 12 rolls back, 0 leaves it open.
"""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64


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
