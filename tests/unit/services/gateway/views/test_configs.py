"""Topics and groups in JSON, byte by byte: their ETags are digests of these bytes."""

from datetime import UTC, datetime

import pytest

from gantry.model.group import SubscriptionGroup
from gantry.model.topic import TopicConfig
from services.gateway.asgi.answer import encode_json
from services.gateway.asgi.conditions import etag_of
from services.gateway.db.models import Group, Topic
from services.gateway.usecases.cluster.brokers import BrokerAnswers
from services.gateway.usecases.configs.configuration import configuration_of
from services.gateway.usecases.configs.kinds import GroupKind, TopicKind
from services.gateway.views.configs import group_view, topic_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, UTC)
TOPIC_ROW = Topic(
    name="T",
    config={"read_queues": 2, "write_queues": 2, "perm": "rw", "order": True, "brokers": ["a", "b"]},
    version=7,
    origin="api",
    created_at=AT,
    updated_at=AT,
)
GROUP_ROW = Group(name="G", config={"retry_max_times": 3}, version=7, origin="broker", created_at=AT, updated_at=AT)
TOPICS = BrokerAnswers(
    {"a": TopicConfig("T", 2, 2, 6, order=True), "c": TopicConfig("T", 8, 4, 7)}, {"b": "broker b: gone"}, "ac"
)
GROUPS = BrokerAnswers({"a": SubscriptionGroup("G", retry_max_times=3)}, {}, "a")
NOBODY = BrokerAnswers({}, {}, ())

OBSERVED_TOPICS = (
    b'"observed":[{"broker":"a","read_queues":2,"write_queues":2,"perm":"rw","order":true,"duplicate_window_ms":0},'
    b'{"broker":"c","read_queues":8,"write_queues":4,"perm":"rw","order":false,"duplicate_window_ms":0}],'
)
OBSERVED_GROUPS = (
    b'"observed":[{"broker":"a","retry_max_times":3,"retry_queues":1,"consume":true,"from_min":true,"broadcast":true,'
    b'"orderly":false,"consume_timeout_minutes":15,"notify_changes":true,"retry_policy":{"kind":"levels"}}],'
)
TOPIC_SETTINGS = b'{"topic":"T","read_queues":2,"write_queues":2,"perm":"rw","order":true,'
GROUP_SETTINGS = (
    b'{"group":"G","retry_max_times":3,"retry_queues":1,"consume":true,"from_min":true,"broadcast":true,'
    b'"orderly":false,"consume_timeout_minutes":15,"notify_changes":true,"retry_policy":null,'
)
WITH_ROW = b'"metadata":"available","created_at":"2026-11-21T09:30:00.123Z","updated_at":"2026-11-21T09:30:00.123Z"}'
WITHOUT_ROW = b'"metadata":"available","created_at":null,"updated_at":null}'
WITHOUT_POSTGRES = b'"metadata":"unavailable","created_at":null,"updated_at":null}'


@pytest.mark.parametrize(
    ("row", "asked", "is_available", "expected", "etag"),
    [
        (
            TOPIC_ROW,
            TOPICS,
            True,
            TOPIC_SETTINGS
            + b'"brokers":["a","b"],"duplicate_window_ms":null,"state":"pending","pending":["b"],"origin":"api",'
            + OBSERVED_TOPICS
            + WITH_ROW,
            '"7-09f625ea"',
        ),
        (
            TOPIC_ROW,
            NOBODY,
            True,
            TOPIC_SETTINGS
            + b'"brokers":["a","b"],"duplicate_window_ms":null,"state":"unknown","pending":[],"origin":"api","observed":[],'
            + WITH_ROW,
            '"7-d3226beb"',
        ),
        (
            None,
            TOPICS,
            True,
            TOPIC_SETTINGS
            + b'"brokers":null,"duplicate_window_ms":null,"state":"applied","pending":[],"origin":"broker",'
            + OBSERVED_TOPICS
            + WITHOUT_ROW,
            None,
        ),
        (
            None,
            TOPICS,
            False,
            TOPIC_SETTINGS
            + b'"brokers":null,"duplicate_window_ms":null,"state":"unknown","pending":[],"origin":"unknown",'
            + OBSERVED_TOPICS
            + WITHOUT_POSTGRES,
            None,
        ),
    ],
    ids=["row", "no broker", "no row", "no Postgres"],
)
def test_a_topic_and_its_etag(engine, row, asked, is_available, expected, etag):
    topic = configuration_of(TopicKind(engine), "T", row, asked, is_metadata_available=is_available)
    assert (encode_json(topic_view(topic)), etag_of(topic_view(topic), topic.version)) == (expected, etag)


@pytest.mark.parametrize(
    ("row", "rest", "etag"), [(GROUP_ROW, WITH_ROW, '"7-a704b65f"'), (None, WITHOUT_ROW, None)], ids=["row", "no row"]
)
def test_a_group_and_its_etag(engine, row, rest, etag):
    group = configuration_of(GroupKind(engine), "G", row, GROUPS)
    expected = GROUP_SETTINGS + b'"state":"applied","pending":[],"origin":"broker",' + OBSERVED_GROUPS + rest
    assert (encode_json(group_view(group)), etag_of(group_view(group), group.version)) == (expected, etag)


def test_observed_configurations_are_stored_in_the_terms_of_the_api(engine):
    assert TopicKind(engine).observed_column(TOPICS.answers) == {
        "a": {"read_queues": 2, "write_queues": 2, "perm": "rw", "order": True, "duplicate_window_ms": 0},
        "c": {"read_queues": 8, "write_queues": 4, "perm": "rw", "order": False, "duplicate_window_ms": 0},
    }
    assert GroupKind(engine).observed_column(GROUPS.answers) == {
        "a": {
            "retry_max_times": 3,
            "retry_queues": 1,
            "consume": True,
            "from_min": True,
            "broadcast": True,
            "orderly": False,
            "consume_timeout_minutes": 15,
            "notify_changes": True,
            "retry_policy": {"kind": "levels"},
        }
    }
