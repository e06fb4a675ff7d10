"""`/v1/topics/{topic}/statistics` and `/v1/groups/{group}/statistics`: for everybody who may see the topic or the group."""

from dataclasses import replace

from gantry.model.group import SubscriptionGroup
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from gantry.model.topic import TopicConfig
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.core import Core, Feature
from services.gateway.features.groups import visible_group
from services.gateway.features.topics import visible_topic
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.operations.statistics import Statistics, Traffic, TrafficReport
from services.gateway.views.statistics import traffic_view


def statistics_feature(core: Core) -> Feature:
    """Return the routes of statistics."""
    return Feature(statistics_routes(Statistics(core.engine, core.brokers), core.topics, core.groups))


def statistics_routes(
    statistics: Statistics, topics: Configs[TopicConfig], groups: Configs[SubscriptionGroup]
) -> list[Operation]:
    """Return the routes of statistics. Callers see only those topics and groups that they may see otherwise."""

    async def of_topic(call: Call) -> Answer:
        topic = visible_topic(call)
        await topics.require(topic)
        group = call.query.get("group")
        if group is not None:
            check_group(group)
        report = await statistics.read(topic=topic, group=group)
        return json_answer(traffic_view(_visible(call, report)))

    async def of_group(call: Call) -> Answer:
        group = visible_group(call)
        await groups.require(group)
        topic = call.query.get("topic")
        if topic is not None:
            check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX)
        report = await statistics.read(topic=topic, group=group)
        return json_answer(traffic_view(_visible(call, report)))

    return [
        Operation("GET", "/v1/topics/{topic}/statistics", of_topic, frozenset({"group"})),
        Operation("GET", "/v1/groups/{group}/statistics", of_group, frozenset({"topic"})),
    ]


def _visible(call: Call, report: TrafficReport) -> TrafficReport:
    principal = call.principal

    def sees(row: Traffic) -> bool:
        return principal.may_see_topic(row.topic) and (row.group is None or principal.may_see_group(row.group))

    if principal.sees_all:
        return report
    sums = None if report.sums is None else [row for row in report.sums if sees(row)]
    return replace(report, brokers=[row for row in report.brokers if sees(row)], sums=sums)
