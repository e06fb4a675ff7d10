"""The bits of sysFlag in records and of sysFlag in pull requests.

Source: docs/formats/commitlog.md, message format of RocketMQ 5.3.
"""

COMPRESSED = 0x1
MULTI_TAGS = 0x2

TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC

BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOSTS_V6_MASK = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP = 0x40
INNER_BATCH = 0x80

COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300


class PullSysFlag:
    """The bits of sysFlag in a pull request."""

    COMMIT_OFFSET = 0x1
    """The broker must store the commitOffset of the request."""
    SUSPEND = 0x2
    """The broker may hold the request until a message arrives."""
    SUBSCRIPTION = 0x4
    """The request contains a subscription. Without this bit the subscription from the heartbeat is used."""
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10

    @staticmethod
    def build(
        *,
        commit_offset: bool = False,
        suspend: bool = False,
        subscription: bool = False,
        class_filter: bool = False,
        lite_pull: bool = False,
    ) -> int:
        """Return the flag with the given bits."""
        return (
            commit_offset * PullSysFlag.COMMIT_OFFSET
            | suspend * PullSysFlag.SUSPEND
            | subscription * PullSysFlag.SUBSCRIPTION
            | class_filter * PullSysFlag.CLASS_FILTER
            | lite_pull * PullSysFlag.LITE_PULL
        )
