"""Results of the calls of jobs, dead letters and scheduled messages."""

from typing import Any, Final

import msgspec

from gantry.http.results import Message

JOB_ENDS: Final = frozenset({"done", "failed", "cancelled"})


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Long work of the gateways. Its state is `queued`, `running`, `done`, `failed` or `cancelled`.

    Attributes:
        done: Items that were finished.
        failed: Items that failed.
        total: All items; None as long as their number is not known.
    """

    job: str
    kind: str
    arguments: dict[str, Any]
    state: str
    cancel_requested: bool
    done: int
    failed: int
    total: int | None
    error: str | None
    created_by: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return self.state in JOB_ENDS


class Origin(msgspec.Struct, frozen=True):
    """The message from which a dead letter comes; None for what the letter does not say."""

    topic: str | None
    message_id: str | None


class DeadLetter(Message, frozen=True, kw_only=True):
    """A message that a group could not consume. `redriven_at` is the time when it was sent again, or None."""

    dead_at: str
    origin: Origin
    attempts: int
    redriven_at: str | None


class RedriveTrial(msgspec.Struct, frozen=True):
    """The number of dead letters that a redrive would send, and some of them in their JSON form."""

    selected: int
    sample: list[dict[str, Any]]


class ScheduledMessage(Message, frozen=True, kw_only=True):
    """A message that waits for its time. `handle` is for recall and reschedule."""

    handle: str
    deliver_at: str


class Rescheduled(msgspec.Struct, frozen=True):
    """The new handle and time of a scheduled message."""

    handle: str
    deliver_at: str | None


class ProducerGroup(msgspec.Struct, frozen=True):
    """The URL that is asked about open transactions of a producer group; None without one."""

    group: str
    check_url: str | None
    has_secret: bool
    updated_at: str | None
