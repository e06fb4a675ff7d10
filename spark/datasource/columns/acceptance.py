"""Evaluates SQL92 filters over records, as brokers do for a group that pulls (docs/filters.md).

A filter accepts a message only if its expression is true. False and unknown are not enough.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantry.sqlfilter import SqlFilter


class RecordFilters:
    """The compiled filters of one topic, numbered from 0."""

    def __init__(self, filters: "Sequence[SqlFilter]") -> None:
        self._filters = tuple(filters)

    def accepting(self, properties: bytes) -> list[int]:
        """Return the numbers of the filters that accept a message with these encoded properties."""
        return [number for number, each in enumerate(self._filters) if each.matches(properties)]


NO_FILTERS: Final = RecordFilters(())


class TopicFilters:
    """The filters of a task by topic. Each is compiled once, when the task begins."""

    def __init__(self, expressions: Mapping[str, Sequence[str]] | None) -> None:
        """Compile expressions; None for no filter. Raises SqlError."""
        self._of_topic: dict[str, RecordFilters] = {}
        if expressions:
            # A task without filters does not load the parser.
            from gantry.sqlfilter import SqlFilter  # noqa: PLC0415

            self._of_topic = {
                topic: RecordFilters([SqlFilter(text) for text in listed]) for topic, listed in expressions.items()
            }

    def of_topic(self, topic: str) -> RecordFilters:
        """Return the filters of a topic."""
        return self._of_topic.get(topic, NO_FILTERS)
