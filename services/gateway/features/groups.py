"""`/v1/groups`: consumer groups, their offsets, clients and subscriptions.

Rights: an admin may do everything. Other keys may read the groups that they may consume with, and commit offsets for
them; only an admin changes or deletes a group.
"""

import msgspec

from gantry.model.group import SubscriptionGroup
from gantry.model.names import check_group
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.auth.principal import Principal
from services.gateway.core import Core, Feature
from services.gateway.features.actor import actor_of
from services.gateway.features.configs import config_routes
from services.gateway.schemas.configs import GroupChange
from services.gateway.schemas.offsets import CloneRequest, Commits, ResetRequest, UndoRequest
from services.gateway.settings import OFFSETS_BYTES_MAX
from services.gateway.usecases.configs.configs import Configs
from services.gateway.usecases.consuming.consistency import GroupConsistency
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.consuming.offsets import GroupOffsets
from services.gateway.usecases.consuming.resets import OffsetResets
from services.gateway.usecases.page import Page
from services.gateway.views.configs import group_view
from services.gateway.views.consumers import client_view, consistency_view, subscription_view
from services.gateway.views.metadata import metadata_page_view
from services.gateway.views.offsets import commits_view, group_offset_view, reset_view
from services.gateway.views.page import page_view

_change = msgspec.json.Decoder(GroupChange)
_commits = msgspec.json.Decoder(Commits)
_reset = msgspec.json.Decoder(ResetRequest)
_undo = msgspec.json.Decoder(UndoRequest)
_clone = msgspec.json.Decoder(CloneRequest)


def group_feature(core: Core) -> Feature:
    """Create the use cases that only these routes need, and return the routes."""
    offsets = GroupOffsets(core.engine, core.brokers, core.reader, core.consumers, core.metadata)
    groups = config_routes(
        "group",
        core.groups,
        _change,
        view=group_view,
        may_see=Principal.may_see_group,
        visible_name=visible_group,
    )
    resets = OffsetResets(core.engine, core.brokers, offsets, core.consumers, core.metadata)
    consistency = GroupConsistency(core.engine, core.brokers)
    consumption = consumption_routes(core.groups, offsets, core.consumers, consistency)
    return Feature([*groups, *consumption, *reset_routes(core.groups, resets)])


def consumption_routes(
    groups: Configs[SubscriptionGroup], offsets: GroupOffsets, consumers: Consumers, consistency: GroupConsistency
) -> list[Operation]:
    """Return the operations on the offsets, clients and subscriptions of a group."""

    async def get_offsets(call: Call) -> Answer:
        group = visible_group(call)
        topic = call.query.get("topic")
        # Without a topic, the list is limited to the topics that the caller may read.
        if topic is not None and not call.principal.sees_all:
            call.principal.require_consume(topic, group)
        await groups.require(group)
        found = await (offsets.of_group(group) if topic is None else offsets.of_topic(group, topic))
        readable = [one for one in found if call.principal.sees_all or call.principal.may_read(one.queue.topic)]
        return json_answer(page_view(Page(readable), group_offset_view))

    async def put_offsets(call: Call) -> Answer:
        group = visible_group(call)
        commits = await call.read_json(_commits, bytes_max=OFFSETS_BYTES_MAX)
        results = await offsets.commit(group, commits.offsets, call.principal, actor_of(call))
        return json_answer(commits_view(results, call.request_id))

    async def clients(call: Call) -> Answer:
        group = visible_group(call)
        await groups.require(group)
        return json_answer(page_view(Page(await consumers.clients(group)), client_view))

    async def subscriptions(call: Call) -> Answer:
        group = visible_group(call)
        cursor, limit = call.query.get("cursor"), limit_of(call.query)
        found = await consumers.subscriptions(group, cursor=cursor, limit=limit)
        return json_answer(metadata_page_view(found, subscription_view))

    async def differences(call: Call) -> Answer:
        group = visible_group(call)
        await groups.require(group)
        return json_answer(consistency_view(await consistency.of(group)))

    return [
        Operation("GET", "/v1/groups/{group}/consistency", differences),
        Operation("GET", "/v1/groups/{group}/offsets", get_offsets, frozenset({"topic"})),
        Operation("PUT", "/v1/groups/{group}/offsets", put_offsets),
        Operation("GET", "/v1/groups/{group}/clients", clients),
        Operation("GET", "/v1/groups/{group}/subscriptions", subscriptions, frozenset({"cursor", "limit"})),
    ]


def reset_routes(groups: Configs[SubscriptionGroup], resets: OffsetResets) -> list[Operation]:
    """Return the operations that reset the offsets of a group."""

    async def reset(call: Call) -> Answer:
        group = visible_group(call)
        wanted = await call.read_json(_reset, bytes_max=OFFSETS_BYTES_MAX)
        await groups.require(group)
        report = await resets.reset(
            group, wanted.topic, wanted.to, call.principal, actor_of(call), dry_run=wanted.dry_run
        )
        return json_answer(reset_view(report, call.request_id))

    async def undo(call: Call) -> Answer:
        group = visible_group(call)
        wanted = await call.read_json(_undo, bytes_max=OFFSETS_BYTES_MAX)
        await groups.require(group)
        report = await resets.undo(group, wanted.undo, call.principal, actor_of(call))
        return json_answer(reset_view(report, call.request_id))

    async def clone(call: Call) -> Answer:
        group = visible_group(call)
        wanted = await call.read_json(_clone, bytes_max=OFFSETS_BYTES_MAX)
        check_group(wanted.from_group, field="/from_group")
        principal = call.principal
        principal.require(principal.may_see_group(wanted.from_group), "consume", f"group {wanted.from_group}")
        await groups.require(wanted.from_group)
        await groups.require(group)
        report = await resets.clone(
            group, wanted.from_group, wanted.topic, principal, actor_of(call), dry_run=wanted.dry_run
        )
        return json_answer(reset_view(report, call.request_id))

    path = "/v1/groups/{group}/offsets"
    return [
        Operation("POST", f"{path}:reset", reset),
        Operation("POST", f"{path}:undo", undo),
        Operation("POST", f"{path}:clone", clone),
    ]


def visible_group(call: Call) -> str:
    """Return the group in the path. Raises InvalidNameError, or ProblemError (403) if the caller may not see it."""
    group: str = call.path_params["group"]
    check_group(group)
    call.principal.require(call.principal.may_see_group(group), "consume", f"group {group}")
    return group
