"""Names of topics and groups: the rules for names, and the names with a special meaning."""

import re
from collections.abc import Iterator
from typing import Final

from gantry.model.errors import InvalidNameError

TOPIC_LENGTH_MAX: Final = 127
"""The limit for topics of clients. It is the limit of version 1 records, which store the length in one signed byte."""
RETRY_TOPIC_LENGTH_MAX: Final = 255
"""The limit for topics that a broker derives from a group name. Above 127, the record needs version 2."""
GROUP_LENGTH_MAX: Final = 255
BODY_BYTES_MAX: Final = 4_194_304
"""The default of max_message_size."""
RECORD_EXTRA_BYTES_MAX: Final = 65_536
"""The bytes that a record may have in addition to max_message_size: head, topic, properties."""
PROPERTIES_BYTES_MAX: Final = 32_767

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
POP_RETRY_SEPARATOR_V1: Final = "_"
POP_RETRY_SEPARATOR_V2: Final = "+"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose committed offsets on the revive topic say which check points are done."""

SYSTEM_GROUPS: Final = frozenset(
    {
        DEFAULT_CONSUMER_GROUP,
        DEFAULT_PRODUCER_GROUP,
        TOOLS_CONSUMER_GROUP,
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        CLIENT_INNER_PRODUCER_GROUP,
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED = "may only hold letters, digits, '_', '-', '%' and '|'"


def check_topic(name: str, *, length_max: int = TOPIC_LENGTH_MAX, field: str = "topic") -> None:
    """Check the name of a topic.

    Raises:
        InvalidNameError: The name is empty or too long, or it contains a character outside `%|a-zA-Z0-9_-`. The
            topics in which a broker stores popped messages for a retry may also contain one `+`.
    """
    if is_retry_topic(name) and name.count(POP_RETRY_SEPARATOR_V2) == 1:
        name = name.replace(POP_RETRY_SEPARATOR_V2, POP_RETRY_SEPARATOR_V1)
    _check(name, length_max, field)


def check_group(name: str, *, field: str = "group") -> None:
    """Check the name of a group. Reserved names are valid here, although clients must not use them.

    Raises:
        InvalidNameError: The name is empty or too long, or it contains a character outside `%|a-zA-Z0-9_-`.
    """
    _check(name, GROUP_LENGTH_MAX, field)


def retry_topic(group: str) -> str:
    """Return the topic in which a broker stores the failed messages of a group for the next retry."""
    return RETRY_PREFIX + group


def pop_retry_topic(group: str, topic: str, *, is_v2: bool) -> str:
    """Return the topic in which a broker stores the popped messages of a topic that a group did not acknowledge.

    With the first spelling (`_`), the names of two pairs of group and topic may be the same.
    """
    return f"{RETRY_PREFIX}{group}{POP_RETRY_SEPARATOR_V2 if is_v2 else POP_RETRY_SEPARATOR_V1}{topic}"


def groups_of_retry_topic(topic: str) -> Iterator[str]:
    """Yield the names of the groups that a retry topic may belong to: `%RETRY%group`, or `%RETRY%group_topic`."""
    name = topic.removeprefix(RETRY_PREFIX)
    yield name
    for at, character in enumerate(name):
        if character in (POP_RETRY_SEPARATOR_V1, POP_RETRY_SEPARATOR_V2):
            yield name[:at]


def revive_topic(cluster: str) -> str:
    """Return the topic in which a broker stores check points of pops and acknowledgements."""
    return REVIVE_TOPIC_PREFIX + cluster


def dlq_topic(group: str) -> str:
    """Return the topic for the dead letters of a group."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic in which a cluster stores the replies of request-reply messages."""
    return f"{cluster}_{REPLY_TOPIC_SUFFIX}"


def is_retry_topic(name: str) -> bool:
    """Return whether the topic is the retry topic of a group."""
    return name.startswith(RETRY_PREFIX)


def is_dlq_topic(name: str) -> bool:
    """Return whether the topic contains dead letters."""
    return name.startswith(DLQ_PREFIX)


def is_system_topic(name: str, cluster: str | None = None, broker: str | None = None) -> bool:
    """Return whether the topic is a system topic. The names of the cluster and the broker are system topics too."""
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        return True
    if broker is not None and name == broker:
        return True
    return cluster is not None and name in (cluster, reply_topic(cluster))


def is_system_group(name: str) -> bool:
    """Return whether the group is a system group."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def _check(name: str, length_max: int, field: str) -> None:
    if not name:
        raise InvalidNameError(field, name, "is empty")
    if len(name) > length_max:
        raise InvalidNameError(field, name, f"is {len(name)} characters long, at most {length_max} are allowed")
    if _NAME.fullmatch(name) is None:
        raise InvalidNameError(field, name, _ALLOWED)
