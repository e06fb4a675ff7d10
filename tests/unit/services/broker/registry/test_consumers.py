from typing import Any

import pytest

from gantry.model.group import parse_tag_expression
from gantry.remoting.codes import LanguageCode
from services.broker.registry.clients import ClientInfo, Memberships
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.producers import ProducerTable


class Connection:
    """A connection with an identity and nothing else."""


A: Any = Connection()
B: Any = Connection()


def client(connection: Any, client_id: str = "1@2", *, seen_ms: int = 0) -> ClientInfo:
    return ClientInfo(connection, client_id, LanguageCode.JAVA, 479, "1.2.3.4:5", 0, seen_ms)


def register(table: ConsumerTable, info: ClientInfo, *topics: tuple[str, str, int] | None, group: str = "g") -> bool:
    subscriptions = None
    if None not in topics:
        subscriptions = [parse_tag_expression(*topic) for topic in topics if topic is not None]
    return table.register(
        group,
        info,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=subscriptions,
    )


def test_the_group_is_notified_of_members_and_topics_but_not_of_expressions() -> None:
    table = ConsumerTable()
    assert register(table, client(A), ("T", "*", 1))
    assert not register(table, client(A), ("T", "*", 1))
    assert not register(table, client(A), ("T", "TagA", 2))
    assert register(table, client(A), ("T", "TagA", 2), ("U", "*", 1))
    assert register(table, client(A), ("U", "*", 1))
    assert register(table, client(B), ("U", "*", 1))


def test_the_greater_version_wins_from_any_client() -> None:
    table = ConsumerTable()
    register(table, client(A), ("T", "new", 5))
    register(table, client(B, "3@4"), ("T", "old", 4))
    info = table.find("g")
    assert info is not None
    assert info.subscriptions["T"].sub_string == "new"


def test_two_instances_with_different_topics_keep_both() -> None:
    table = ConsumerTable()
    register(table, client(A), ("T", "*", 1))
    assert register(table, client(B, "3@4"), ("U", "*", 1))
    info = table.find("g")
    assert info is not None
    assert list(info.subscriptions) == ["T", "U"]
    assert not register(table, client(A), ("T", "*", 1))
    assert register(table, client(B, "3@4"), ("T", "*", 1))
    assert list(info.subscriptions) == ["T"]


def test_the_newest_subscription_of_those_that_are_left_counts() -> None:
    table = ConsumerTable()
    for number, connection in enumerate((A, B, Connection())):
        register(table, client(connection, str(number)), ("T", f"Tag{number}", number))
    info = table.find("g")
    assert info is not None
    assert info.subscriptions["T"].sub_string == "Tag2"
    register(table, client(A, "0"), ("T", "Older", -5))
    assert info.subscriptions["T"].sub_string == "Tag2"
    (_, last) = list(info.members)[-1]
    table.unregister("g", next(key[0] for key in info.members if key[1] == last), last)
    assert info.subscriptions["T"].sub_string == "Tag1"


def test_a_heartbeat_without_subscriptions_leaves_them_unchanged() -> None:
    table = ConsumerTable()
    register(table, client(A), ("T", "*", 1))
    assert not register(table, client(A), None)
    info = table.find("g")
    assert info is not None
    assert list(info.subscriptions) == ["T"]


def test_members_are_identified_by_connection_and_id() -> None:
    table = ConsumerTable()
    for connection, client_id in [(A, "one"), (A, "two"), (B, "one")]:
        register(table, client(connection, client_id), ("T", "*", 1))
    info = table.find("g")
    assert info is not None
    assert info.client_ids() == ["one", "two"]
    assert info.connections() == [A, B]
    assert table.unregister("g", A, "one")
    assert not table.unregister("g", A, "one")
    assert not table.unregister("nobody", A, "one")
    assert info.client_ids() == ["two", "one"]


def test_a_closed_connection_removes_all_its_instances() -> None:
    table = ConsumerTable()
    for group, connection, client_id in [("g", A, "one"), ("g", A, "two"), ("h", A, "one"), ("i", B, "x")]:
        register(table, client(connection, client_id), ("T", "*", 1), group=group)
    assert table.has_connection(A)
    assert table.drop_connection(A) == ["g", "h"]
    assert table.find("g") is None
    assert [group.name for group in table.groups()] == ["i"]
    assert table.groups_of("T") == ["i"]
    assert not table.has_connection(A)


def test_members_expire_one_by_one_without_heartbeats() -> None:
    table = ConsumerTable()
    register(table, client(A, "old", seen_ms=0), ("T", "*", 1))
    register(table, client(A, "young", seen_ms=500), ("T", "*", 1))
    assert table.expire(1000, 1000) == ([], set())
    assert table.expire(1001, 1000) == (["g"], {A})
    assert table.has_connection(A)
    info = table.find("g")
    assert info is not None
    assert info.client_ids() == ["young"]
    assert info.find_member("old") is None
    member = info.find_member("young")
    assert member is not None
    assert member.connection is A


def test_producers_are_added_and_removed() -> None:
    table = ProducerTable()
    table.register("pg", client(A, "one"))
    table.register("pg", client(A, "one", seen_ms=5))
    table.register("pg", client(B, "two", seen_ms=2000))
    table.register("qg", client(A, "one"))
    assert [member.client_id for member in table.members("pg")] == ["one", "two"]
    assert set(table.groups()) == {"pg", "qg"}
    table.unregister("qg", A, "one")
    table.unregister("qg", A, "one")
    assert table.members("qg") == []
    assert table.expire(1500, 1000) == {A}
    assert not table.has_connection(A)
    table.drop_connection(B)
    assert table.groups() == {}


def test_the_member_count_is_right_after_any_change() -> None:
    consumers, producers = ConsumerTable(), ProducerTable()
    for _ in range(2):
        for connection in (A, B):
            for client_id in ("1@2", "3@4"):
                register(consumers, client(connection, client_id), ("T", "*", 1))
                producers.register("p", client(connection, client_id))
    assert (consumers.members_count, producers.members_count) == (4, 4)
    consumers.unregister("g", A, "1@2")
    producers.unregister("p", A, "1@2")
    producers.unregister("p", A, "1@2")
    assert (consumers.members_count, producers.members_count) == (3, 3)
    assert consumers.has_member("g", (A, "3@4"))
    assert not consumers.has_member("g", (A, "1@2"))
    assert producers.has_member("p", (B, "1@2"))
    consumers.drop_connection(B)
    producers.expire(1000, 1)
    assert (consumers.members_count, producers.members_count) == (1, 0)
    assert (consumers.has_connection(A), consumers.has_connection(B)) == (True, False)


class Watched(dict[Any, Any]):
    """Members of a group that must not be iterated over."""

    def __iter__(self) -> Any:
        raise AssertionError("the members were iterated over")


def test_a_lost_connection_does_not_visit_the_groups_of_others() -> None:
    consumers = ConsumerTable()
    register(consumers, client(A), ("T", "*", 1), group="other")
    other = consumers.find("other")
    assert other is not None
    other.members = Watched(other.members)
    register(consumers, client(B), ("T", "*", 1))
    assert consumers.drop_connection(B) == ["g"]
    assert not consumers.has_connection(B)


def test_a_member_that_is_removed_twice_is_a_bug() -> None:
    members = Memberships()
    members.add(A, "g", "1@2")
    members.add(A, "h", "1@2")
    members.remove(A, "g", "1@2")
    with pytest.raises(AssertionError, match="1@2 is not a member of group g"):
        members.remove(A, "g", "1@2")
    members.remove(A, "h", "1@2")
    with pytest.raises(AssertionError, match="no member of group h has the connection of 1@2"):
        members.remove(A, "h", "1@2")
