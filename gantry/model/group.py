"""Consumer groups: their configuration, and the subscriptions of consumers."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gantry.model.errors import InvalidExpressionError
from gantry.model.javahash import java_hash

SUB_ALL = "*"
TAG_EXPRESSION = "TAG"
SQL92_EXPRESSION = "SQL92"


class ConsumeType(enum.StrEnum):
    """The way a consumer gets its messages, as named in heartbeats."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(enum.StrEnum):
    """Whether a message goes to one consumer or to all consumers of a group."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(enum.StrEnum):
    """The start position of a group without committed offsets. The last three mean the same as the first."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


def _customized_retry_policy() -> Mapping[str, Any]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """The configuration of a consumer group on a broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=_customized_retry_policy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """The subscription of a consumer to one topic."""

    topic: str
    sub_string: str = SUB_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG_EXPRESSION
    class_filter_mode: bool = False

    @property
    def is_all(self) -> bool:
        """Whether the subscription matches every message."""
        return self.sub_string == SUB_ALL

    @property
    def is_sql(self) -> bool:
        """Whether the subscription has an SQL92 expression. Brokers alone evaluate it, and they do so exactly."""
        return self.expression_type == SQL92_EXPRESSION

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a unit with this tags code may match. Two tags may have the same code.

        Only the low 32 bits of `tags_code` are compared. The unit of a delayed message has a time in this field.
        """
        if self.sub_string == SUB_ALL or self.is_sql:
            return True
        code = tags_code & 0xFFFF_FFFF
        return (code - 0x1_0000_0000 if code & 0x8000_0000 else code) in self.code_set

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with this tag, which a broker has returned, matches.

        For tags, this check is exact; clients do the same. An SQL92 expression does not depend on the tag alone.
        """
        return self.sub_string == SUB_ALL or self.is_sql or tag in self.tags_set


def sql_subscription(topic: str, sql: str, version_ms: int = 0) -> SubscriptionData:
    """Return the subscription for an SQL92 expression, which is not parsed here.

    Args:
        topic: The topic of the subscription.
        sql: The expression (docs/filters.md).
        version_ms: The version of the subscription, usually the wall time of its creation.
    """
    return SubscriptionData(topic=topic, sub_string=sql, sub_version=version_ms, expression_type=SQL92_EXPRESSION)


def parse_tag_expression(topic: str, expression: str | None, version_ms: int = 0) -> SubscriptionData:
    """Return the subscription for a tag expression: `*`, or tags separated by `||`.

    Args:
        topic: The topic of the subscription.
        expression: The expression. None and the empty text mean all messages.
        version_ms: The version of the subscription, usually the wall time of its creation.

    Raises:
        InvalidExpressionError: The expression contains no tag.
    """
    if expression is None or expression in ("", SUB_ALL):
        return SubscriptionData(topic=topic, sub_version=version_ms)
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise InvalidExpressionError("filter", expression, "names no tag")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=frozenset(tags),
        code_set=frozenset(java_hash(tag) for tag in tags),
        sub_version=version_ms,
    )
