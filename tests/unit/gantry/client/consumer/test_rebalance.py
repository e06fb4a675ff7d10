"""Membership in a group: shares, first offsets, changes, and the times of commits."""

import asyncio

import pytest

from gantry.client.consumer.processqueue import ProcessQueue
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.errors import BrokerError, InvalidArgumentError, NoRouteError
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.remoting.bodies import ConsumerRunningInfo, ProcessQueueInfo
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.client import GetConsumerRunningInfoHeader, NotifyConsumerIdsChangedHeader
from tests.support.scriptedpeer import refuse

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


class Owner:
    """The owner of a member: keeps a window for each queue, and records the changes that it was told."""

    def __init__(self, engine, client_id: str = "me@1", **options) -> None:
        self.windows: dict[MessageQueue, ProcessQueue] = {}
        self.changes: list[tuple[list[str], list[str]]] = []
        self.starts: dict[str, int] = {}
        options.setdefault("commit_point", self.commit_point)
        options.setdefault("start", FIRST)
        subscription = parse_tag_expression("T", "*", 1)
        self.member = GroupMember(engine, "g", [subscription], client_id=client_id, on_change=self.on_change, **options)

    async def on_change(self, assigned: list[Assignment], revoked: list[MessageQueue]) -> None:
        self.changes.append(([shown(one.queue) for one in assigned], [shown(queue) for queue in revoked]))
        for one in assigned:
            self.windows[one.queue] = ProcessQueue(one.next_offset)
            self.starts[shown(one.queue)] = one.next_offset
        for queue in revoked:
            del self.windows[queue]

    def commit_point(self, queue: MessageQueue) -> int:
        return self.windows[queue].commit_point

    @property
    def held(self) -> list[str]:
        return sorted(shown(queue) for queue in self.member.held)


def shown(queue: MessageQueue) -> str:
    return f"{queue.broker_name}{queue.queue_id}"


def notify(transport) -> None:
    header = NotifyConsumerIdsChangedHeader(consumer_group="g")
    transport.push(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, one_way=True))


def ask_what_it_does(transport, client_id: str, group: str = "g") -> RemotingCommand:
    header = GetConsumerRunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=False)
    return transport.push(RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))


async def test_the_only_member_gets_all_queues_at_once(engine, groups):
    owner = Owner(engine)
    await owner.member.start()
    assert owner.changes == [(["a0", "a1", "b0", "b1"], [])]
    assert owner.held == ["a0", "a1", "b0", "b1"]
    assert groups.members["a"]["g"] == groups.members["b"]["g"] == {"me@1"}


async def test_members_of_one_engine_share_the_queues(engine, groups, transport):
    first, second = Owner(engine, "me@1"), Owner(engine, "me@2")
    await first.member.start()
    await second.member.start()
    notify(transport)
    await asyncio.sleep(2.1)
    assert (first.held, second.held) == (["a0", "a1"], ["b0", "b1"])
    assert first.changes[-1] == ([], ["b0", "b1"])


async def test_a_change_of_members_takes_effect_within_a_second_if_notified_and_else_within_twenty(
    engine, groups, transport
):
    owner = Owner(engine)
    await owner.member.start()
    await asyncio.sleep(5)
    groups.foreign.append("other@1")
    notify(transport)
    await asyncio.sleep(1.1)
    assert owner.held == ["a0", "a1"]
    groups.foreign.clear()
    await asyncio.sleep(21)
    assert owner.held == ["a0", "a1", "b0", "b1"]


async def test_a_burst_of_notices_causes_one_request_a_second(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    await asyncio.sleep(1.5)
    looks = len(transport.sent(LIST))
    for _ in range(50):
        notify(transport)
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    assert len(transport.sent(LIST)) - looks <= 2


async def test_more_members_than_queues_leaves_some_without(engine, groups):
    groups.foreign += ["aa@1", "ab@1", "ac@1", "ad@1"]
    owner = Owner(engine, "zz@9")
    await owner.member.start()
    assert owner.changes == [([], [])]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, 100),
        (FIRST, 10),
        (StartPosition(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 55_000), 55),
    ],
)
async def test_a_new_group_starts_and_commits_at_its_start_position(engine, groups, start, expected):
    owner = Owner(engine, start=start)
    await owner.member.start()
    assert set(owner.starts.values()) == {expected}
    # The next owner of the queue must not start at the end of the queue.
    assert set(groups.committed.values()) == {expected}
    assert len(groups.committed) == 4


async def test_a_committed_offset_counts_more_than_the_start(engine, groups):
    groups.committed["g", "T", "a", 1] = 42
    owner = Owner(engine)
    await owner.member.start()
    assert owner.starts == {"a0": 10, "a1": 42, "b0": 10, "b1": 10}


async def test_offsets_of_acknowledged_messages_are_committed_every_five_seconds(engine, groups):
    owner = Owner(engine)
    await owner.member.start()
    queue = MessageQueue("T", "a", 0)
    owner.windows[queue].add([(10, 1), (11, 1), (12, 1)], 13, now_ms=0)
    owner.windows[queue].ack(10)
    owner.windows[queue].ack(12)
    await asyncio.sleep(5.1)
    assert groups.committed["g", "T", "a", 0] == 11
    owner.windows[queue].ack(11)
    await asyncio.sleep(5.1)
    assert groups.committed["g", "T", "a", 0] == 13


async def test_a_commit_that_fails_is_tried_again_and_one_that_did_not_change_is_not(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    queue = MessageQueue("T", "a", 0)
    owner.windows[queue].add([(10, 1)], 11, now_ms=0)
    owner.windows[queue].ack(10)
    transport.at("a:10911", {RequestCode.UPDATE_CONSUMER_OFFSET: refuse(2)})
    await asyncio.sleep(6)
    assert groups.committed["g", "T", "a", 0] == 10
    groups.serve("a")
    await asyncio.sleep(5)
    assert groups.committed["g", "T", "a", 0] == 11
    commits = len(transport.sent(RequestCode.UPDATE_CONSUMER_OFFSET))
    await asyncio.sleep(30)
    assert len(transport.sent(RequestCode.UPDATE_CONSUMER_OFFSET)) == commits


async def test_a_broker_that_hangs_does_not_hold_up_the_others_offsets(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    for window in owner.windows.values():
        window.add([], 90, now_ms=0)
    transport.at("a:10911", {RequestCode.UPDATE_CONSUMER_OFFSET: lambda request: None})
    await asyncio.sleep(5.1)
    assert groups.committed["g", "T", "b", 0] == groups.committed["g", "T", "b", 1] == 90


async def test_a_revoked_queue_is_committed_first(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    queue = MessageQueue("T", "b", 1)
    owner.windows[queue].add([(10, 1)], 20, now_ms=0)
    owner.windows[queue].ack(10)
    groups.foreign.append("other@1")
    notify(transport)
    await asyncio.sleep(1.1)
    assert queue not in owner.windows
    assert groups.committed["g", "T", "b", 1] == 20


async def test_closing_commits_and_leaves_the_group(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    queue = MessageQueue("T", "a", 1)
    owner.windows[queue].add([(10, 1)], 11, now_ms=0)
    owner.windows[queue].ack(10)
    await owner.member.close()
    assert groups.committed["g", "T", "a", 1] == 11
    assert groups.members["a"]["g"] == groups.members["b"]["g"] == set()
    assert len(transport.sent(RequestCode.UNREGISTER_CLIENT)) == 2
    requests = len(transport.requests)
    notify(transport)
    await asyncio.sleep(25)
    await owner.member.close()
    assert all(request.code == 105 for _, request in transport.requests[requests:])


async def test_an_owner_may_commit_the_queues_it_holds(engine, groups):
    owner = Owner(engine, commit_point=None)
    await owner.member.start()
    await owner.member.commit(MessageQueue("T", "a", 0), 33)
    assert groups.committed["g", "T", "a", 0] == 33
    with pytest.raises(InvalidArgumentError, match="not held"):
        await owner.member.commit(MessageQueue("T", "zzz", 0), 33)


async def test_an_owner_may_commit_while_a_queue_is_revoked(engine, groups, transport):
    member: GroupMember

    async def on_change(assigned, revoked):
        for queue in revoked:
            await member.commit(queue, 77)

    subscription = parse_tag_expression("T", "*", 1)
    member = GroupMember(engine, "g", [subscription], client_id="me@1", on_change=on_change)
    await member.start()
    groups.foreign.append("other@1")
    notify(transport)
    await asyncio.sleep(1.1)
    assert groups.committed["g", "T", "b", 0] == groups.committed["g", "T", "b", 1] == 77


async def test_a_member_that_can_not_list_the_group_keeps_its_queues(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    for broker in ("a", "b"):
        transport.at(f"{broker}:10911", {LIST: refuse(2)})
    await asyncio.sleep(60)
    assert owner.held == ["a0", "a1", "b0", "b1"]
    assert len(owner.changes) == 1
    groups.serve("a", "b")
    groups.foreign.append("other@1")
    await asyncio.sleep(2.2)
    assert owner.held == ["a0", "a1"]


async def test_a_member_joins_while_a_broker_is_down_and_takes_its_queues_when_it_is_back(engine, groups, transport):
    await engine.route("T")
    transport.down("a:10911")
    owner = Owner(engine, start=None)
    joined_s = engine.clock.now_ms() // 1000
    await owner.member.start()
    assert owner.changes == [(["b0", "b1"], [])]
    await asyncio.sleep(5)
    groups.serve("a")
    await asyncio.sleep(2.2)
    assert owner.changes[1:] == [(["a0", "a1"], [])]
    # Messages that broker a stored after the member joined are consumed: the fake's offset for a time is its second.
    assert owner.starts == {"a0": joined_s, "a1": joined_s, "b0": 100, "b1": 100}


async def test_a_member_does_not_join_without_a_start_offset(engine, groups, transport):
    await engine.route("T")
    groups.foreign.append("zz@1")
    transport.at("a:10911", {RequestCode.QUERY_CONSUMER_OFFSET: refuse(2)})
    owner = Owner(engine)
    with pytest.raises(BrokerError):
        await owner.member.start()
    assert groups.members["a"]["g"] == groups.members["b"]["g"] == set()


async def test_another_broker_is_asked_when_the_first_is_down(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    transport.down("a:10911")
    groups.foreign.append("other@1")
    notify(transport)
    await asyncio.sleep(1.1)
    assert owner.held == ["a0", "a1"]


async def test_a_broker_that_forgot_the_group_gets_a_heartbeat_before_queues_are_released(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    groups.members["a"]["g"].clear()
    groups.members["b"]["g"].clear()
    await asyncio.sleep(21)
    assert owner.held == ["a0", "a1", "b0", "b1"]
    assert len(owner.changes) == 1
    assert groups.members["a"]["g"] == {"me@1"}


async def test_a_member_missing_from_the_list_gets_no_queues(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    groups.foreign.append("other@1")
    for broker in ("a", "b"):
        transport.at(f"{broker}:10911", {RequestCode.HEART_BEAT: refuse(1)})
        groups.members[broker]["g"].clear()
    await asyncio.sleep(21)
    assert owner.held == []


async def test_queues_that_come_and_go_follow_the_route(engine, groups, cluster):
    owner = Owner(engine)
    await owner.member.start()
    cluster.topic("T", "a")
    await asyncio.sleep(60)
    assert owner.held == ["a0", "a1"]
    cluster.topic("T", "a", "b")
    groups.serve("a", "b")
    await asyncio.sleep(60)
    assert owner.held == ["a0", "a1", "b0", "b1"]


async def test_an_unknown_start_offset_is_asked_for_again(engine, groups, transport):
    owner = Owner(engine)
    groups.foreign.append("zz@1")
    await owner.member.start()
    groups.foreign.clear()
    transport.at("b:10911", {RequestCode.QUERY_CONSUMER_OFFSET: refuse(2)})
    await asyncio.sleep(22)
    assert owner.held == ["a0", "a1"]
    groups.serve("b")
    await asyncio.sleep(2.2)
    assert owner.held == ["a0", "a1", "b0", "b1"]


async def test_an_owner_that_fails_is_asked_again(engine, groups, transport):
    told: list[list[Assignment]] = []

    async def on_change(assigned, revoked):
        told.append(list(assigned))
        if len(told) == 2:
            raise RuntimeError("the owner has a bug")

    subscription = parse_tag_expression("T", "*", 1)
    member = GroupMember(engine, "g", [subscription], client_id="me@1", on_change=on_change)
    groups.foreign.append("zz@1")
    await member.start()
    groups.foreign.clear()
    await asyncio.sleep(23)
    assert [len(assigned) for assigned in told] == [2, 2, 2]
    assert len(member.held) == 4


@pytest.mark.parametrize("step", ["commit", "unregister"])
async def test_a_cancelled_close_leaves_the_group_all_the_same(engine, groups, transport, step):
    owner = Owner(engine)
    await owner.member.start()
    transport.latency_s["a:10911"] = transport.latency_s["b:10911"] = 0.5
    closing = asyncio.ensure_future(owner.member.close())
    await asyncio.sleep(0.1 if step == "commit" else 0.6)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert owner.held == []
    await asyncio.sleep(1)
    assert groups.members["a"]["g"] == groups.members["b"]["g"] == set()
    transport.requests.clear()
    notify(transport)
    await asyncio.sleep(120)
    requests = {request.code for _, request in transport.requests}
    assert requests <= {RequestCode.GET_ROUTEINFO_BY_TOPIC}, "nothing of the member goes on"


async def test_joining_a_missing_topic_leaves_nothing_behind(engine, groups, transport):
    subscription = parse_tag_expression("Nowhere", "*", 1)
    member = GroupMember(engine, "g", [subscription], client_id="me@1", on_change=None)
    with pytest.raises(NoRouteError):
        await member.start()
    assert transport.sent(RequestCode.HEART_BEAT) == []


async def test_a_join_that_fails_half_way_leaves_the_group(engine, groups, transport):
    for broker in ("a", "b"):
        transport.at(f"{broker}:10911", {RequestCode.QUERY_CONSUMER_OFFSET: refuse(2)})
    owner = Owner(engine)
    with pytest.raises(BrokerError):
        await owner.member.start()
    assert groups.members["a"]["g"] == set()
    assert owner.changes == []


async def test_a_member_reports_its_queues_to_the_broker(engine, groups, transport):
    owner = Owner(engine)
    started_at_ms = engine.clock.now_ms()
    await owner.member.start()
    await owner.member.commit(MessageQueue("T", "a", 1), 42)
    answer = ask_what_it_does(transport, "me@1")
    assert answer.code == ResponseCode.SUCCESS
    info = ConsumerRunningInfo.decode(answer.body_bytes)
    assert {shown(queue): state for queue, state in info.queues.items()} == {
        "a0": ProcessQueueInfo(commit_offset=10),
        "a1": ProcessQueueInfo(commit_offset=42),
        "b0": ProcessQueueInfo(commit_offset=10),
        "b1": ProcessQueueInfo(commit_offset=10),
    }
    # An unknown number is left out of the message, because 0 would be a wrong number.
    assert b'"commitOffset":42' in answer.body_bytes
    assert b"cachedMsgCount" not in answer.body_bytes
    assert [(one.topic, one.sub_string) for one in info.subscriptions] == [("T", "*")]
    assert info.properties == {
        "PROP_NAMESERVER_ADDR": "ns:1;",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_at_ms),
        "consumerGroup": "g",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "messageModel": "CLUSTERING",
    }
    assert (info.status_table, info.jstack) == ({}, None)


async def test_members_of_one_client_id_and_group_answer_together(engine, groups, cluster, transport):
    cluster.topic("U", "a", "b")
    groups.serve("a", "b")
    first = Owner(engine)
    other = GroupMember(
        engine, "g", [parse_tag_expression("U", "red", 1)], client_id="me@1", on_change=first.on_change, start=FIRST
    )
    await first.member.start()
    await other.start()
    info = ConsumerRunningInfo.decode(ask_what_it_does(transport, "me@1").body_bytes)
    assert {queue.topic for queue in info.queues} == {"T", "U"}
    assert len(info.queues) == 8
    assert [(one.topic, one.sub_string) for one in info.subscriptions] == [("T", "*"), ("U", "red")]
    await first.member.close()
    info = ConsumerRunningInfo.decode(ask_what_it_does(transport, "me@1").body_bytes)
    assert {queue.topic for queue in info.queues} == {"U"}


async def test_questions_about_another_member_or_group_are_refused(engine, groups, transport):
    owner = Owner(engine)
    await owner.member.start()
    for client_id, group in (("other@1", "g"), ("me@1", "other")):
        answer = ask_what_it_does(transport, client_id, group)
        assert (answer.code, group in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    await owner.member.close()
    assert ask_what_it_does(transport, "me@1").code == ResponseCode.SYSTEM_ERROR


async def test_queues_of_a_topic_without_a_route_are_revoked(engine, groups, cluster):
    owner = Owner(engine)
    await owner.member.start()
    cluster.topic("T", "a", "b", perm=2)
    await asyncio.sleep(60)
    assert owner.held == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"group": "no group"}, "group"),
        ({"subscriptions": []}, "subscriptions"),
        ({"start": StartPosition(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)}, "start"),
    ],
)
async def test_invalid_options_of_a_member_are_refused(engine, options, field):
    options = {"group": "g", "subscriptions": [parse_tag_expression("T", "*")], **options}
    group, subscriptions = options.pop("group"), options.pop("subscriptions")
    with pytest.raises(InvalidArgumentError, match=field):
        GroupMember(engine, group, subscriptions, client_id="me@1", on_change=None, **options)
