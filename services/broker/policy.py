"""The settings that request 25 can change while the broker runs, in the form that the hot paths read.

RocketMQ has a thread pool and a request queue for each family of requests. This broker has one event loop, which
handles a request in the turn that reads it. So RocketMQ's words have these meanings here:

- *send queue*: appended messages that wait for the disk (SYNC_FLUSH); its capacity is
  `send_thread_pool_queue_capacity`.
- *pull queue*: held pulls; its capacity is `pull_thread_pool_queue_capacity`.
- *waiting time*: the standing lag of the loop (`overload.LoopLag`). Every request has waited about that long in its
  socket before the loop read it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Policy:
    """The current switches, under the names of the settings.

    It is mutable on purpose: handlers keep a reference and read it at every request.
    """

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
        """Copy every switch from the settings, whose fields have the same names."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(settings, field.name))


POLICY_KEYS = frozenset(field.name for field in dataclasses.fields(Policy))
