"""Shrinking a topic without loss: fewer write queues at once, fewer read queues when all groups have consumed the others.

The job asks each broker to close the queues (request 900034). The broker does so in one step with the check that all groups
have consumed them, so that a message of a producer with an old route is not lost in between. The desired number of read
queues follows when all brokers have closed them; until then, the reconciler may open them again, which costs nothing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.shrinking import QueueBlock, Shrinking
from gantry.remoting.bodies.tables import GroupList
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.topic import QueryTopicConsumeByWhoHeader, ShrinkTopicHeader
from services.gateway.db.jobs import Job
from services.gateway.db.repositories import ANYTHING, Actor, Expectation
from services.gateway.errors import CONFLICT, VERSION_CONFLICT, ProblemError, invalid
from services.gateway.schemas.configs import TopicChange
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.jobs.jobs import Jobs
from services.gateway.usecases.jobs.runner import Work

SHRINK: Final = "shrink"
BLOCKS_NAMED_MAX: Final = 5
BLOCKS_SHOWN_MAX: Final = 1_000


class ShrinkArguments(msgspec.Struct, frozen=True):
    """The arguments of a job: the topic, and the number of queues that stay."""

    topic: str
    queues: int


@dataclass(frozen=True, slots=True)
class Block:
    """A group that has not consumed the messages of a queue.

    Attributes:
        group: The group; None if no group consumes the topic.
        broker: Name of the broker set.
        queue_id: The queue.
        unconsumed: Number of messages; None if it is unknown, because the group is in broadcasting mode.
    """

    group: str | None
    broker: str
    queue_id: int
    unconsumed: int | None


@dataclass(frozen=True, slots=True)
class ShrinkState:
    """The obstacles to fewer read queues of a topic.

    Attributes:
        topic: The topic.
        queues: The wanted number of queues.
        read_queues: The present number of read queues.
        write_queues: The present number of write queues.
        blocks: Queues that are not consumed, by group, at most BLOCKS_SHOWN_MAX.
        missing: Reasons why brokers did not answer.
    """

    topic: str
    queues: int
    read_queues: int
    write_queues: int
    blocks: Sequence[Block]
    missing: Sequence[str]

    @property
    def is_ready(self) -> bool | None:
        """Whether nothing prevents it; None if a broker does not answer and the others have nothing."""
        return False if self.blocks else None if self.missing else True


class Shrinks:
    """Plans shrinks, and finds out what prevents them. The caller has checked the rights."""

    def __init__(self, shrinker: "TopicShrinker", topics: Configs[TopicConfig], jobs: Jobs) -> None:
        self._shrinker = shrinker
        self._topics = topics
        self._jobs = jobs

    async def state(self, topic: str, queues: int) -> ShrinkState:
        """Return what prevents a topic from having so few queues.

        Raises:
            ProblemError: 400: the topic does not have more queues; 404, 503 as `Configs.get`.
        """
        settings = await self._settings(topic, queues)
        asked = await self._shrinker.ask(topic, queues, dry_run=True)
        asked.require_answer()
        return ShrinkState(
            topic=topic,
            queues=queues,
            read_queues=settings.read_queues,
            write_queues=settings.write_queues,
            blocks=blocks_of(asked)[:BLOCKS_SHOWN_MAX],
            missing=[asked.failures[name] for name in sorted(asked.failures)],
        )

    async def start(self, topic: str, queues: int, actor: Actor) -> Job:
        """Lower the number of write queues, and queue the job that lowers the number of read queues.

        Raises:
            ProblemError: As `state`; 403: the topic belongs to the system; 429: too many jobs.
        """
        settings = await self._settings(topic, queues)
        if settings.write_queues > queues:
            await self._topics.put(topic, TopicChange(write_queues=queues), ANYTHING, actor)
        return await self._jobs.create(SHRINK, msgspec.to_builtins(ShrinkArguments(topic, queues)), actor)

    async def _settings(self, topic: str, queues: int) -> Any:
        settings: Any = (await self._topics.get(topic)).settings
        if queues >= max(settings.read_queues, settings.write_queues):
            reason = f"is not below read_queues={settings.read_queues} and write_queues={settings.write_queues}"
            raise invalid("/queues", queues, reason)
        return settings


class TopicShrinker:
    """Asks the brokers of a topic to close queues."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, known: Presence[TopicConfig]) -> None:
        self._engine = engine
        self._brokers = brokers
        self._known = known

    async def ask(self, topic: str, queues: int, *, dry_run: bool) -> BrokerAnswers[Shrinking]:
        """Ask all brokers that hold a topic, or should. Raises ProblemError (503) if no broker is known.

        A group may have consumed on some brokers only; the others do not know that it wants their messages. So all get
        the groups of all. While a broker does not tell its groups, none closes a queue.
        """
        homes = await self._known.observed_homes(topic)
        among = {*homes, *await self._brokers.sets()}
        groups = await self._groups(topic, among)
        header = ShrinkTopicHeader(topic=topic, queue_nums=queues, dry_run=dry_run or bool(groups.failures))
        names = GroupList(group_list=sorted({name for found in groups.answers.values() for name in found})).encode()

        async def ask_one(address: str) -> Shrinking | None:
            try:
                response = await self._engine.call(address, RequestCode.GANTRY_SHRINK_TOPIC, header, body=names)
            except BrokerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                raise
            return read_body(Shrinking.decode, response, address)

        asked = await self._brokers.ask(ask_one, among)
        there = {broker: found for broker, found in asked.answers.items() if found is not None}
        return BrokerAnswers(there, {**groups.failures, **asked.failures}, asked.answered)

    async def _groups(self, topic: str, among: Collection[str]) -> BrokerAnswers[list[str]]:
        """Return the groups that consume a topic, by broker."""
        header = QueryTopicConsumeByWhoHeader(topic=topic)

        async def ask_one(address: str) -> list[str]:
            response = await self._engine.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return list(read_body(GroupList.decode, response, address).group_list)

        return await self._brokers.ask(ask_one, among)


class ShrinkJob:
    """The work of a shrink: one look at all brokers. If groups have not consumed everything, the job is due again later."""

    name = SHRINK

    def __init__(self, shrinker: TopicShrinker, topics: Configs[TopicConfig]) -> None:
        self._shrinker = shrinker
        self._topics = topics

    async def run(self, work: Work) -> None:
        """Close the queues on all brokers, then lower the desired number of read queues.

        Raises:
            ProblemError: Retryable: groups have not consumed everything, or a broker does not answer. Otherwise the number
                of write queues was raised meanwhile, or the topic is gone.
        """
        arguments = msgspec.convert(work.job.arguments, ShrinkArguments)
        topic, queues = arguments.topic, arguments.queues
        found = await self._topics.get(topic)
        settings: Any = found.settings
        if settings.write_queues > queues:
            raise ProblemError(
                CONFLICT, f"topic: write_queues of {topic} was raised to {settings.write_queues} meanwhile"
            )
        if settings.read_queues <= queues:
            return
        asked = await self._shrinker.ask(topic, queues, dry_run=False)
        closed = sum(answer.read_queue_nums <= queues for answer in asked.answers.values())
        await work.save({"closed": closed}, done=closed, total=len(asked.answers) + len(asked.failures))
        asked.require_answer()
        blocks = blocks_of(asked)
        if blocks:
            raise ProblemError(CONFLICT, f"waits: {describe(blocks)}", retryable=True)
        if asked.failures:
            raise asked.problem()
        if closed < len(asked.answers):
            raise ProblemError(CONFLICT, f"waits: messages still come to the queues of {topic}", retryable=True)
        change = TopicChange(read_queues=queues, allow_hiding=True)
        # A shrink to fewer queues may have ended meanwhile; this one must not open them again.
        expected = Expectation(version=found.version)
        try:
            await self._topics.put(topic, change, expected, Actor(work.job.created_by or SHRINK))
        except ProblemError as error:
            if error.kind is not VERSION_CONFLICT:
                raise
            raise ProblemError(CONFLICT, f"waits: {topic} was changed meanwhile", retryable=True) from None


def blocks_of(asked: BrokerAnswers[Shrinking]) -> list[Block]:
    """Return all blocks, by broker; pure."""

    def block(broker: str, found: QueueBlock) -> Block:
        return Block(found.group, broker, found.queue_id, found.unconsumed)

    return [block(broker, found) for broker, answer in sorted(asked.answers.items()) for found in answer.blocks]


def describe(blocks: Sequence[Block]) -> str:
    """Return the blocks as a text for people; pure."""
    named = [_describe_one(block) for block in blocks[:BLOCKS_NAMED_MAX]]
    more = len(blocks) - BLOCKS_NAMED_MAX
    return "; ".join(named) + (f" and {more} more" if more > 0 else "")


def _describe_one(block: Block) -> str:
    queue = f"{block.broker}/{block.queue_id}"
    if block.group is None:
        return f"{queue} has {block.unconsumed} messages, and no group consumes the topic"
    count = "an unknown number of" if block.unconsumed is None else block.unconsumed
    return f"group {block.group} has {count} messages to consume in {queue}"
