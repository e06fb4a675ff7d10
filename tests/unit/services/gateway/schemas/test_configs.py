"""Conversion of configurations between the API's format and the brokers'."""

import msgspec
import pytest

from gantry.model.errors import InvalidValueError
from gantry.model.group import SubscriptionGroup
from gantry.model.propertyname import RESERVED_PROPERTIES
from gantry.model.topic import TopicConfig
from services.gateway.schemas import configs
from services.gateway.schemas.configs import GroupSettings, TopicSettings
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.rights import Rights
from tools.contract import load


def test_known_settings_are_changed_and_others_kept():
    there = TopicConfig("T", 8, 8, 15, True, "MULTI_TAG", 3, {"a": "b"})
    wanted = TopicSettings(read_queues=2, write_queues=3, perm="r", order=False)
    assert wanted.applied_to("T", there) == TopicConfig("T", 2, 3, 13, False, "MULTI_TAG", 3, {"a": "b"})
    assert wanted.applied_to("T", None) == TopicConfig("T", 2, 3, 4, False)
    group = GroupSettings(retry_max_times=3, consume=False).applied_to("g", SubscriptionGroup("g", broker_id=7))
    assert (group.retry_max_times, group.consume_enable, group.broker_id) == (3, False, 7)


def test_a_topic_kept_by_a_broker_only_becomes_readable():
    there = TopicConfig("T", 2, 8, 10, True, "MULTI_TAG", 3, {"a": "b"})
    wanted = TopicSettings(read_queues=4, write_queues=4, perm="r")
    assert wanted.kept_as(there) == TopicConfig("T", 4, 8, 14, True, "MULTI_TAG", 3, {"a": "b"})
    assert wanted.kept_as(wanted.kept_as(there)) == wanted.kept_as(there)
    assert TopicSettings(perm="w").kept_as(there) == there


def test_applied_settings_are_met_and_shown_as_requested():
    for settings in (TopicSettings(), TopicSettings(perm="none", order=True), TopicSettings(perm="w", read_queues=1)):
        present = settings.applied_to("T", None)
        assert settings.is_met_by(present)
        assert {**configs.observed_topic(present), "brokers": None} == msgspec.to_builtins(settings)
    settings = GroupSettings(orderly=True, consume_timeout_minutes=1)
    assert configs.observed_group(settings.applied_to("g", None)) == msgspec.to_builtins(settings)


def test_settings_of_brokers_are_adopted():
    present = {"b": TopicConfig("T", 8, 8), "a": TopicConfig("T", 2, 2)}
    assert configs.adopted_topic(present, frozenset("ab")).brokers is None
    taken = configs.adopted_topic(present, frozenset("abc"))
    assert (taken.brokers, taken.read_queues) == (["a", "b"], 2)
    stored = msgspec.to_builtins(taken)
    assert configs.read_settings(TopicSettings, {**stored, "of a later version": 1}).brokers == ["a", "b"]
    assert configs.read_settings(GroupSettings, {"consume": False}) == GroupSettings(consume=False)


@pytest.mark.parametrize(
    "text",
    [
        b'{"read_queues": 0}',
        b'{"read_queues": 1025}',
        b'{"perm": "rx"}',
        b'{"brokers": []}',
        b'{"brokers": ["a b"]}',
        b'{"order": 1}',
        b'{"queues": 4}',
    ],
)
def test_wrong_settings_are_refused(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=TopicSettings)


def test_a_broker_is_named_once():
    with pytest.raises(InvalidValueError):
        TopicSettings(brokers=["a", "a"]).check()


@pytest.mark.parametrize(
    "text", [b'{"publish": [""]}', b'{"publish": ["a b"]}', b'{"publish": ["a\\n"]}', b'{"root": true}']
)
def test_wrong_rights_are_refused(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Rights)


def test_a_cursor_belongs_to_one_list():
    cursor = encode_cursor("topics", "T:1")
    assert decode_cursor(cursor, "topics") == "T:1"
    for bad in (
        "",
        "x",
        cursor + "A",
        cursor + "=",
        encode_cursor("groups", "T"),
        encode_cursor("topics", "\x00"),
        "ü",
    ):
        with pytest.raises(InvalidValueError):
            decode_cursor(bad, "topics")


def test_the_contract_lists_the_reserved_names():
    reserved = load()["components"]["schemas"]["ReservedProperty"]["anyOf"]
    assert set(reserved[1]["enum"]) == RESERVED_PROPERTIES
