"""Clients, subscriptions, offsets and commits of groups in JSON, byte by byte."""

from datetime import UTC, datetime

import pytest

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.connections import ClientConnection, ConsumerConnection
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.asgi.answer import encode_json
from services.gateway.db.models import Subscription
from services.gateway.errors import invalid
from services.gateway.schemas.offsets import Commit
from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.consuming.consumers import Consumers, connected_clients
from services.gateway.usecases.consuming.offsets import CommitResult, GroupOffset
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import MetadataPage
from services.gateway.views.consumers import client_view, subscription_view
from services.gateway.views.metadata import metadata_page_view
from services.gateway.views.offsets import commits_view, group_offset_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, UTC)
C1 = ClientConnection(client_addr="10.0.0.1:1", client_id="c1", language="JAVA", version=479)
GROUP = ConsumerConnection(
    connections=(C1,),
    subscriptions={"T": SubscriptionData("T", "AA", sub_version=1)},
    consume_type=ConsumeType.CONSUME_PASSIVELY,
    message_model=MessageModel.CLUSTERING,
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
)
SUBSCRIBED = (
    b'{"topic":"T","filter":"AA","filter_type":"TAG","message_model":"CLUSTERING","client_kind":"JAVA",'
    b'"clients":["c1"],"clients_count":1,'
)


@pytest.mark.parametrize(
    ("connections", "rest"),
    [
        (
            {"a": GROUP, "b": GROUP},
            (
                b'"brokers":["a","b"],"message_model":"CLUSTERING","consume_type":"CONSUME_PASSIVELY",'
                b'"from_where":"CONSUME_FROM_LAST_OFFSET"}]'
            ),
        ),
        (
            {"a": ConsumerConnection(connections=(C1,))},
            b'"brokers":["a"],"message_model":"","consume_type":"","from_where":""}]',
        ),
    ],
)
def test_clients(connections, rest):
    views = [client_view(client) for client in connected_clients(connections)]
    expected = b'[{"client_id":"c1","address":"10.0.0.1:1","language":"JAVA","version":"V5_3_3",' + rest
    assert encode_json(views) == expected


def test_subscriptions_from_postgres():
    row = Subscription(
        topic="T",
        expression="AA",
        expression_type="TAG",
        message_model="CLUSTERING",
        client_kind="JAVA",
        clients=["c1"],
        clients_count=1,
        active=False,
        verdict="consistent",
        first_seen_at=AT,
        last_seen_at=AT,
    )
    view = metadata_page_view(MetadataPage([row], "next", is_metadata_available=True), subscription_view)
    assert encode_json(view) == (
        b'{"items":[' + SUBSCRIBED + b'"active":false,"verdict":"consistent",'
        b'"first_seen_at":"2026-11-21T09:30:00.123Z","last_seen_at":"2026-11-21T09:30:00.123Z"}],'
        b'"next_cursor":"next","metadata":"available"}'
    )


async def test_subscriptions_from_brokers(engine, brokers, clock, monkeypatch):
    consumers = Consumers(engine, brokers, Metadata(None), clock=clock)

    async def connections(group):
        return BrokerAnswers({"a": GROUP}, {}, "a")

    monkeypatch.setattr(consumers, "connections", connections)
    monkeypatch.setattr(clock, "now_ms", lambda: 1_795_253_400_123)
    view = metadata_page_view(await consumers.subscriptions("G", cursor=None, limit=10), subscription_view)
    assert encode_json(view) == (
        b'{"items":[' + SUBSCRIBED + b'"active":true,"verdict":"consistent",'
        b'"first_seen_at":null,"last_seen_at":"2026-11-21T09:30:00.123Z"}],"next_cursor":null,"metadata":"unavailable"}'
    )


@pytest.mark.parametrize(
    ("state", "rest"),
    [
        (None, b'"committed_offset":null,"min_offset":null,"max_offset":null,"lag":null}'),
        (
            QueueState(queue_id=1, max_offset=5, min_offset=2),
            b'"committed_offset":null,"min_offset":"2","max_offset":"5","lag":null}',
        ),
        (
            QueueState(queue_id=1, max_offset=5, min_offset=2, committed_offset=3),
            b'"committed_offset":"3","min_offset":"2","max_offset":"5","lag":"2"}',
        ),
        (
            QueueState(queue_id=1, max_offset=5, committed_offset=9),
            b'"committed_offset":"9","min_offset":"0","max_offset":"5","lag":"0"}',
        ),
    ],
    ids=["unknown", "never committed", "committed", "beyond the end"],
)
def test_offsets_of_a_group(state, rest):
    view = group_offset_view(GroupOffset(MessageQueue("T", "a", 1), state))
    assert encode_json(view) == b'{"topic":"T","broker":"a","queue_id":1,' + rest


def test_results_of_commits():
    results = [
        CommitResult(Commit("T", "a", 0, "3"), None),
        CommitResult(Commit("T", "a", 1, "9"), invalid("/offsets/1/offset", "9", "is beyond the end of the queue, 5")),
    ]
    view = commits_view(results, "r-1")
    problem = view["results"][1].pop("problem")
    assert encode_json(view) == (
        b'{"results":[{"topic":"T","broker":"a","queue_id":0,"offset":"3","outcome":"committed"},'
        b'{"topic":"T","broker":"a","queue_id":1,"offset":"9","outcome":"refused"}],"committed":1,"refused":1}'
    )
    assert (problem["request_id"], problem["field"], problem["status"]) == ("r-1", "/offsets/1/offset", 400)
