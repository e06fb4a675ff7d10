"""Objectives: limits for the lag of a group. Lag reports judge by them (docs/alerts.md)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gantry.model.errors import InvalidValueError
from gantry.model.group import SubscriptionGroup
from gantry.model.names import retry_topic
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import Clock
from services.gateway.db.objectives import Objective, ObjectiveRepository
from services.gateway.db.repositories import Actor, Expectation
from services.gateway.errors import CONFLICT, UNKNOWN_OBJECTIVE, ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.objectives import ALL_TOPICS, ObjectiveChange
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING: Final = "objectives"
OBJECTIVES_MAX: Final = 10_000
"""Reports read all objectives; reading more would take longer than the report itself."""

_PLACE = re.compile(r"([^/]+)/([^/]*)")


@dataclass(frozen=True, slots=True)
class PutObjective:
    """An objective after a change, and whether the change created it."""

    objective: Objective
    is_new: bool


class Objectives:
    """Use cases of objectives. The caller has checked the rights and the names."""

    def __init__(
        self, metadata: Metadata, groups: Configs[SubscriptionGroup], topics: Configs[TopicConfig], *, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._groups = groups
        self._topics = topics
        self._clock = clock

    async def page(self, *, group: str | None, cursor: str | None, limit: int) -> Page[Objective]:
        """List objectives by group and topic; the objective of a group comes before those of its topics."""
        after = None if cursor is None else _place_of(cursor)
        async with self._metadata.transaction() as session:
            found = await ObjectiveRepository(session).page(group=group, after=after, limit=limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        if len(found) < limit:
            return Page(found)
        return Page(found, encode_cursor(LISTING, f"{found[-1].group_name}/{found[-1].topic}"))

    async def get(self, group: str, topic: str | None) -> Objective:
        """Return one objective; `topic` None is the objective for all topics. Raises ProblemError (404)."""
        async with self._metadata.transaction() as session:
            found = await ObjectiveRepository(session).get(group, topic or ALL_TOPICS)
        if found is None:
            raise _unknown(group, topic)
        return found

    async def put(
        self, group: str, topic: str | None, change: ObjectiveChange, expect: Expectation, actor: Actor
    ) -> PutObjective:
        """Create or change an objective: fields that are not given stay, null removes a limit.

        Raises:
            InvalidValueError: A value is not valid.
            ProblemError: 404: the group or the topic does not exist; 409: there are OBJECTIVES_MAX already; 412: the row
                does not match `expect`; 503: a silent broker may have the group or the topic.
        """
        await self._groups.require(group)
        # The broker makes the retry topic when a message first fails.
        if topic is not None and topic != retry_topic(group):
            await self._topics.get(topic)
        now = datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)
        async with self._metadata.transaction() as session:
            done = await ObjectiveRepository(session).put(
                group,
                topic or ALL_TOPICS,
                lambda present: change.applied_to(present, now=now),
                actor=actor,
                expect=expect,
                count_max=OBJECTIVES_MAX,
            )
        if done is None:
            raise ProblemError(CONFLICT, f"group: there are {OBJECTIVES_MAX:,} objectives already, which is the limit")
        return PutObjective(*done)

    async def delete(self, group: str, topic: str | None, expect: Expectation, actor: Actor) -> None:
        """Delete one. Raises ProblemError (404, 412)."""
        async with self._metadata.transaction() as session:
            repository = ObjectiveRepository(session)
            if not await repository.delete(group, topic or ALL_TOPICS, actor=actor, expect=expect):
                raise _unknown(group, topic)


def _place_of(cursor: str) -> tuple[str, str]:
    place = _PLACE.fullmatch(decode_cursor(cursor, LISTING))
    if place is None:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
    return place[1], place[2]


def _unknown(group: str, topic: str | None) -> ProblemError:
    of = f"group {group}" if topic is None else f"group {group} on topic {topic}"
    return ProblemError(UNKNOWN_OBJECTIVE, f"group: there is no objective of {of}", field="group")
