"""Conversion of configurations between the API's format and the brokers'."""

import msgspec
import pytest
from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from gantry.model.group import SubscriptionGroup
from gantry.model.propertyname import RESERVED_PROPERTIES
from gantry.model.topic import DUPLICATE_WINDOW as WINDOW
from gantry.model.topic import TopicConfig
from services.gateway.schemas import configs
from services.gateway.schemas.configs import GroupSettings, TopicChange, TopicSettings
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.retrypolicies import ExponentialRetries, LevelRetries, ListedRetries
from services.gateway.schemas.rights import Rights
from tools.contract import load


def test_known_settings_are_changed_and_others_kept():
    there = TopicConfig("T", 8, 8, 15, True, "MULTI_TAG", 3, {"a": "b"})
    wanted = TopicSettings(read_queues=2, write_queues=3, perm="r", order=False)
    assert wanted.applied_to("T", there) == TopicConfig("T", 2, 3, 13, False, "MULTI_TAG", 3, {"a": "b"})
    assert wanted.applied_to("T", None) == TopicConfig("T", 2, 3, 4, False)
    group = GroupSettings(retry_max_times=3, consume=False).applied_to("g", SubscriptionGroup("g", broker_id=7))
    assert (group.retry_max_times, group.consume_enable, group.broker_id) == (3, False, 7)


def test_a_duplicate_window_is_set_changed_removed_or_kept():
    without, with_one = TopicConfig("T", attributes={"a": "b"}), TopicConfig("T", attributes={"a": "b", WINDOW: "5000"})
    for window_ms, there, changes in (
        (None, without, None),
        (None, with_one, f"+{WINDOW}=5000"),
        (0, without, None),
        (0, with_one, f"-{WINDOW}"),
        (60_000, without, f"+{WINDOW}=60000"),
        (60_000, with_one, f"+{WINDOW}=60000"),
    ):
        settings = TopicSettings(16, 16, duplicate_window_ms=window_ms)
        applied = settings.applied_to("T", there)
        assert configs.attribute_changes(applied) == changes
        assert applied.attributes["a"] == "b"
        assert settings.is_met_by(there) == (applied == there) == (changes in (None, f"+{WINDOW}=5000"))


@pytest.mark.parametrize(
    ("given", "window_ms"),
    [("10m", 600_000), ("PT1S", 1_000), ("24h", 86_400_000), (True, 600_000), (False, 0), (None, 0), (UNSET, 7)],
)
def test_a_window_is_given_as_a_duration(given, window_ms):
    change = TopicChange(duplicate_window=given)
    assert change.over(TopicSettings(duplicate_window_ms=7)).duplicate_window_ms == window_ms


@pytest.mark.parametrize("given", ["999ms", "25h", "ten", "", "-1s"])
def test_a_window_out_of_range_is_refused_with_its_field(given):
    with pytest.raises(InvalidValueError, match="/duplicate_window"):
        TopicChange(duplicate_window=given).over(None)


def test_a_topic_kept_by_a_broker_only_becomes_readable():
    there = TopicConfig("T", 2, 8, 10, True, "MULTI_TAG", 3, {"a": "b"})
    wanted = TopicSettings(read_queues=4, write_queues=4, perm="r")
    assert wanted.kept_as(there) == TopicConfig("T", 4, 8, 14, True, "MULTI_TAG", 3, {"a": "b"})
    assert wanted.kept_as(wanted.kept_as(there)) == wanted.kept_as(there)
    assert TopicSettings(perm="w").kept_as(there) == there


def test_applied_settings_are_met_and_shown_as_requested():
    for settings in (
        TopicSettings(duplicate_window_ms=0),
        TopicSettings(perm="none", order=True, duplicate_window_ms=60_000),
        TopicSettings(perm="w", read_queues=1, duplicate_window_ms=0),
    ):
        present = settings.applied_to("T", None)
        assert settings.is_met_by(present)
        assert {**configs.observed_topic(present), "brokers": None} == msgspec.to_builtins(settings)
    for policy in (LevelRetries(), ListedRetries([10_000, 60_000]), ExponentialRetries(1_000, 3, 60_000)):
        settings = GroupSettings(orderly=True, consume_timeout_minutes=1, retry_policy=policy)
        stored = msgspec.to_builtins(settings)
        assert configs.read_settings(GroupSettings, stored) == settings
        present = settings.applied_to("g", None)
        assert settings.is_met_by(present)
        assert configs.observed_group(present) == stored


def test_a_group_without_a_retry_policy_keeps_that_of_the_broker():
    custom = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 3_000]}}
    there = SubscriptionGroup("g", group_retry_policy=custom)
    assert GroupSettings().applied_to("g", there).group_retry_policy == custom
    assert GroupSettings().is_met_by(there)
    assert configs.adopted_group({"a": there}, frozenset("a")).retry_policy is None
    assert configs.observed_group(there)["retry_policy"] == {"kind": "delays", "delays_ms": [3_000]}
    # The first two entries of the list never count.
    assert GroupSettings(retry_policy=ListedRetries([3_000])).is_met_by(there)
    assert not GroupSettings(retry_policy=LevelRetries()).is_met_by(there)


def test_a_change_sets_and_clears_a_retry_policy():
    def changed(base: GroupSettings | None, text: bytes) -> GroupSettings:
        return msgspec.json.decode(text, type=configs.GroupChange).over(base)

    made = changed(None, b'{"retry_policy": {"kind": "delays", "delays_ms": [1]}}')
    assert made.retry_policy == ListedRetries([1])
    assert changed(made, b"{}") == made
    assert changed(made, b'{"retry_policy": {"kind": "exponential"}}').retry_policy == ExponentialRetries()
    assert changed(made, b'{"retry_policy": null}').retry_policy is None


@pytest.mark.parametrize(
    "policy",
    [
        b'{"kind": "steps"}', b"{}", b'{"kind": "delays", "delays_ms": []}', b'{"kind": "delays", "delays_ms": [0]}',
        b'{"kind": "exponential", "multiplier": 0}', b'{"kind": "levels", "delays_ms": [1]}',
        b'{"kind": "delays", "delays_ms": [3456000001]}',
    ],
)  # fmt: skip
def test_a_wrong_retry_policy_is_refused(policy):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"retry_policy": ' + policy + b"}", type=configs.GroupChange)


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
