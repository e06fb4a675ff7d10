"""The switches that request 25 may change while the broker runs, as the hot paths read them.

RocketMQ has a pool of threads and a queue of requests a family; this broker has one loop, in which a request is
handled in the turn that reads it. So the words of RocketMQ's settings mean here:

- *send queue*: messages that are appended and wait for the disk (SYNC_FLUSH); its capacity is
  `send_thread_pool_queue_capacity`.
- *pull queue*: pulls that are held; its capacity is `pull_thread_pool_queue_capacity`.
- *waiting time*: how late the loop is all the time (`overload.StandingLag`), since that is how long every request
  waited in its socket before it was read.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Policy:
    """Mutable on purpose: handlers keep a reference and read it at every request. Names are those of the settings."""

    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    broker_permission: int = 6
    default_topic_queue_nums: int = 8
    start_accept_send_request_time_stamp: int = 0
    max_message_size: int = 4_194_304
    default_query_max_num: int = 32
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: int = 120_000
    sync_flush_timeout: int = 5000
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: int = 200
    wait_time_mills_in_pull_queue: int = 5000
    send_thread_pool_queue_capacity: int = 10_000
    pull_thread_pool_queue_capacity: int = 100_000
    os_page_cache_busy_time_out_mills: int = 1000

    def follow(self, settings: Any) -> None:
        """Take every switch from the settings, which have fields of the same names."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(settings, field.name))


POLICY_KEYS = frozenset(field.name for field in dataclasses.fields(Policy))
