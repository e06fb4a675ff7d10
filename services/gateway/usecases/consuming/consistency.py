"""Whether the members of a group agree on topics, filters and message model, merged from all brokers.

Each broker knows what each member announces. A member announces the same to all brokers, so the answers differ only for a
moment, or if a broker has lost a member.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.group import TAG_EXPRESSION
from gantry.remoting.bodies.variants import GroupVariants, MemberVariant, WantedTopic
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.client import GroupVariantsHeader
from services.gateway.usecases.cluster.brokers import Brokers

CLIENTS_NAMED_MAX: Final = 100

MODELS: Final = "models"
TOPICS: Final = "topics"
FILTERS: Final = "filters"
SUBSCRIBED: Final = "subscribed"
NOT_SUBSCRIBED: Final = "not_subscribed"


@dataclass(slots=True)
class Side:
    """The members on one side of a difference.

    Attributes:
        value: Their announcement: a message model, a filter, `subscribed` or `not_subscribed`.
        clients: Client ids, at most CLIENTS_NAMED_MAX.
        clients_count: Number of members.
        since_ms: Wall time from which on one of them has announced it.
    """

    value: str
    clients: dict[str, None] = field(default_factory=dict)
    clients_count: int = 0
    since_ms: int = 0

    def add(self, variant: MemberVariant) -> None:
        """Add the members of a variant."""
        self.since_ms = min(self.since_ms or variant.since, variant.since)
        self.clients_count += variant.clients
        for client_id in variant.client_ids:
            if len(self.clients) < CLIENTS_NAMED_MAX:
                self.clients[client_id] = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between members: its kind, the topic (None for `models`), and the sides."""

    kind: str
    topic: str | None
    sides: Sequence[Side]


@dataclass(frozen=True, slots=True)
class Consistency:
    """The state of a group.

    Attributes:
        is_consistent: Whether all members agree; None if a broker does not answer and the others see no difference.
        since_ms: Wall time since when they differ; None if they don't.
        differences: The differences.
        missing: Reasons why brokers did not answer.
    """

    is_consistent: bool | None
    since_ms: int | None
    differences: Sequence[Difference]
    missing: Sequence[str]


class GroupConsistency:
    """Asks the brokers. The caller checks the right to the group, and that it exists."""

    def __init__(self, engine: ClientEngine, brokers: Brokers) -> None:
        self._engine = engine
        self._brokers = brokers

    async def of(self, group: str) -> Consistency:
        """Return the state of a group. Raises ProblemError (503) if no broker answers."""

        async def ask(address: str) -> GroupVariants:
            header = GroupVariantsHeader(consumer_group=group)
            try:
                answer = await self._engine.call(address, RequestCode.GANTRY_GROUP_VARIANTS, header)
            except BrokerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    return GroupVariants(variants=[])
                raise
            return GroupVariants.decode(answer.body_bytes)

        asked = await self._brokers.ask(ask)
        asked.require_answer()
        return judge(asked.answers.values(), [asked.failures[name] for name in sorted(asked.failures)])


def judge(answers: Iterable[GroupVariants], missing: Sequence[str]) -> Consistency:
    """Return the state of a group from the answers of its brokers; pure."""
    answers = list(answers)
    variants = merge(variant for answer in answers for variant in answer.variants)
    differences = find_differences(variants)
    started = [answer.differs_since for answer in answers if answer.differs_since is not None]
    if differences:
        since_ms = min(started) if started else max(variant.since for variant in variants)
        return Consistency(False, since_ms, differences, missing)
    return Consistency(None if missing else True, None, (), missing)


def merge(variants: Iterable[MemberVariant]) -> list[MemberVariant]:
    """Return the variants of several brokers, equal ones as one; pure. Each broker counts the same members."""
    merged: dict[tuple[str, tuple[tuple[str, str, str], ...]], MemberVariant] = {}
    for variant in variants:
        wanted = tuple((one.topic, one.expression_type, one.expression) for one in variant.subscriptions)
        known = merged.get((variant.message_model, wanted))
        if known is not None:
            ids = list(dict.fromkeys((*known.client_ids, *variant.client_ids)))
            variant = MemberVariant(
                client_ids=ids[:CLIENTS_NAMED_MAX],
                clients=max(known.clients, variant.clients, len(ids)),
                message_model=variant.message_model,
                since=min(known.since, variant.since),
                subscriptions=variant.subscriptions,
            )
        merged[variant.message_model, wanted] = variant
    return sorted(merged.values(), key=lambda one: one.since)


def find_differences(variants: Sequence[MemberVariant]) -> list[Difference]:
    """Return in what the variants differ; pure."""
    found = [Difference(MODELS, None, _sides(variants, lambda variant: variant.message_model))]
    wanted: list[Mapping[str, WantedTopic]] = [{one.topic: one for one in each.subscriptions} for each in variants]
    for topic in sorted({topic for topics in wanted for topic in topics}):
        having = [variant for variant, topics in zip(variants, wanted, strict=True) if topic in topics]
        sides = _sides(variants, lambda variant: SUBSCRIBED if variant in having else NOT_SUBSCRIBED)  # noqa: B023
        found.append(Difference(TOPICS, topic, sides))
        found.append(Difference(FILTERS, topic, _sides(having, lambda variant: _filter(variant, topic))))  # noqa: B023
    return [difference for difference in found if len(difference.sides) > 1]


def _sides(variants: Iterable[MemberVariant], value_of: Callable[[MemberVariant], str]) -> list[Side]:
    sides: dict[str, Side] = {}
    for variant in variants:
        value = value_of(variant)
        sides.setdefault(value, Side(value)).add(variant)
    return list(sides.values())


def _filter(variant: MemberVariant, topic: str) -> str:
    one = next(one for one in variant.subscriptions if one.topic == topic)
    return one.expression if one.expression_type == TAG_EXPRESSION else f"{one.expression_type}: {one.expression}"
