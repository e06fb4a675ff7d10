"""The commands of `gantry` against a running stack, as a user or a script types them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.commandline import Gantry
from tests.support.stack import Stack, environment


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        yield running


@pytest.fixture
def gantry(stack: Stack) -> Gantry:
    return Gantry(stack)


def test_a_topic_from_creation_to_deletion(gantry: Gantry) -> None:
    made = gantry.json("topic", "create", "LIFE", "--queues", "2", "--perm", "rw")
    assert (made["topic"], made["read_queues"], made["state"]) == ("LIFE", 2, "applied")
    assert gantry.run("topic", "create", "LIFE", "--new").returncode == 1
    assert "LIFE" in [item["topic"] for item in gantry.json("topic", "list")]
    assert ["LIFE", "2", "2", "rw", "no", "all", "applied"] in gantry.table("topic", "list")
    shown = gantry.json("topic", "show", "LIFE")
    assert [(queue["broker"], queue["queue_id"]) for queue in shown["queues"]] == [("broker-a", 0), ("broker-a", 1)]
    assert gantry.run("topic", "delete", "LIFE", typed="n\n").returncode == 1
    assert gantry.run("topic", "delete", "LIFE", "--yes").returncode == 0
    gone = gantry.run("topic", "show", "LIFE")
    assert (gone.returncode, gone.stdout, gone.stderr.count("\n")) == (1, "", 1)
    assert "LIFE" in gone.stderr


def test_messages_are_sent_and_read(gantry: Gantry) -> None:
    gantry.json("topic", "create", "IN_OUT", "--queues", "1")
    body = '{"flight": 1545} é\n'
    options = ["--tag", "UA", "--keys", "UA1545,N14228", "--property", "origin=EWR", "--idempotency-key", "order-42"]
    sent = gantry.json("message", "send", "IN_OUT", "-", *options, typed=body)
    assert (sent["outcome"], sent["queue_offset"]) == ("stored", "0")
    for found in (
        gantry.json("message", "get", sent["stored_id"]),
        gantry.json("message", "get", sent["message_id"], "--topic", "IN_OUT"),
    ):
        assert (found["body"], found["tag"], found["keys"]) == (body, "UA", ["UA1545", "N14228"])
        assert found["properties"] == {"origin": "EWR"}
    assert gantry.run("message", "get", sent["stored_id"], "--body").stdout == body
    deadline = time.monotonic() + 10
    while not (by_key := gantry.json("message", "find", "IN_OUT", "N14228")):
        assert time.monotonic() < deadline, "the index never returned the message"
    assert [item["stored_id"] for item in by_key] == [sent["stored_id"]]
    gantry.json("message", "send", "IN_OUT", "second", "--tag", "AA")
    for options in (("--sql", "origin = 'EWR'"), ("--filter", "UA"), ("--to", sent_again_at(gantry))):
        assert [item["body"] for item in gantry.json("message", "find", "IN_OUT", *options)] == [body]
    assert len(gantry.json("message", "find", "IN_OUT", "--from", "2020-01-01T00:00:00Z")) == 2
    nothing = gantry.run("message", "find", "IN_OUT")
    assert (nothing.returncode, "give a KEY, or one of --from" in nothing.stderr) == (1, True)
    gantry.json("group", "create", "IN_OUT_READERS")
    unknown = gantry.run("message", "find", "IN_OUT", "--not-consumed-by", "IN_OUT_READERS")
    assert "has never committed an offset here" in unknown.stderr
    tail = gantry.run("message", "tail", "IN_OUT", "--from-start", "--until-end", "--json")
    assert [json.loads(line)["body"] for line in tail.stdout.splitlines()] == [body, "second"]
    only = gantry.run("message", "tail", "IN_OUT", "--from-start", "--until-end", "--filter", "AA")
    assert only.stdout.rstrip().endswith("[AA]  second")
    only = gantry.run("message", "tail", "IN_OUT", "--from-start", "--until-end", "--sql", "origin = 'EWR'", "--json")
    assert [json.loads(line)["body"] for line in only.stdout.splitlines()] == [body]
    wrong = gantry.run("message", "tail", "IN_OUT", "--sql", "origin LIKE 'E%'")
    assert (wrong.returncode, "at character 8: LIKE is not supported" in wrong.stderr) == (1, True)
    nowhere = gantry.run("message", "send", "NO_SUCH_TOPIC", "x")
    assert nowhere.returncode == 1
    assert "[not_stored]" in nowhere.stderr


def sent_again_at(gantry: Gantry) -> str:
    """Return the store time of the second message of IN_OUT."""
    [second] = gantry.json("message", "find", "IN_OUT", "--filter", "AA")
    at: str = second["stored_at"]
    return at


def test_tail_prints_new_messages(gantry: Gantry, stack: Stack) -> None:
    gantry.json("topic", "create", "FOLLOW", "--queues", "2")
    following = subprocess.Popen(
        [sys.executable, "-m", "gantry.cli", "message", "tail", "FOLLOW", "--from-start", "--limit", "4", "--json",
         "--data", str(stack.directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )  # fmt: skip
    try:
        for number in range(4):
            gantry.json("message", "send", "FOLLOW", f"m{number}")
        out, _ = following.communicate(timeout=30)
    finally:
        following.kill()
        following.wait()
    assert following.returncode == 0
    assert sorted(json.loads(line)["body"] for line in out.splitlines()) == ["m0", "m1", "m2", "m3"]


def test_a_group_and_its_offsets(gantry: Gantry) -> None:
    gantry.json("topic", "create", "LAG", "--queues", "1")
    for number in range(5):
        gantry.json("message", "send", "LAG", f"m{number}")
    made = gantry.json(
        "group", "create", "READERS", "--retry-max-times", "3", "--no-from-min", "--retry-policy", "1s,1m"
    )
    assert (made["retry_max_times"], made["from_min"]) == (3, False)
    assert "READERS" in [item["group"] for item in gantry.json("group", "list")]
    assert gantry.json("offset", "set", "READERS", "LAG", "--to", "2")[0]["outcome"] == "committed"
    (row,) = gantry.json("offset", "read", "READERS", "--topic", "LAG")
    assert (row["committed_offset"], row["max_offset"], row["lag"]) == ("2", "5", "3")
    gantry.json("offset", "set", "READERS", "LAG", "--to", "latest")
    assert gantry.json("offset", "read", "READERS", "--topic", "LAG")[0]["lag"] == "0"
    gantry.json("offset", "set", "READERS", "LAG", "--to", "earliest")
    assert gantry.table("offset", "read", "READERS")[1][:4] == ["LAG", "broker-a", "0", "0"]
    beyond = gantry.run("offset", "set", "READERS", "LAG", "--to", "99", "--json")
    assert beyond.returncode == 1
    assert json.loads(beyond.stdout)[0]["outcome"] == "refused"
    assert gantry.json("group", "show", "READERS")["clients"] == []
    assert gantry.run("group", "delete", "READERS", "-y").returncode == 0


def test_a_broker_is_drained_and_its_settings_are_changed(gantry: Gantry) -> None:
    assert [broker["drained"] for broker in gantry.json("broker", "list")] == [False]
    assert "takes no more messages" in gantry.run("broker", "drain", "broker-a").stdout
    assert "was drained before" in gantry.run("broker", "drain", "broker-a").stdout
    assert [broker["drained"] for broker in gantry.json("broker", "list")] == [True]
    assert "takes messages again" in gantry.run("broker", "undrain", "broker-a").stdout
    names = {row[0] for row in gantry.table("broker", "settings", "broker-a", "--live")}
    assert "max_message_size" in names
    assert "delete_when" not in names
    (changed,) = gantry.json("broker", "set", "broker-a", "default_query_max_num=40")
    assert (changed["value"], changed["default"]) == ("40", "32")
    refused = gantry.run("broker", "set", "broker-a", "default_query_max_num=32", "--expect", "default_query_max_num=1")
    assert refused.returncode == 1
    assert "default_query_max_num is '40', not '1'" in refused.stderr
    gantry.json("broker", "set", "broker-a", "default_query_max_num=32")
    assert gantry.table("broker", "clean", "broker-a", "--unused-topics", "--dry-run")[0] == ["log_files", "0"]
    assert gantry.json("broker", "clean", "broker-a")["expired_files"]["files"] == 0


def test_statistics_of_a_topic_and_a_group(gantry: Gantry) -> None:
    gantry.json("topic", "create", "STATS", "--queues", "1")
    assert gantry.run("message", "send", "STATS", "hello").returncode == 0
    header, row = gantry.table("topic", "stats", "STATS")
    assert (header[0], row[:2], row[-5]) == ("topic", ["STATS", "stored"], "1")
    gantry.json("group", "create", "STATS_GROUP")
    assert gantry.json("group", "stats", "STATS_GROUP")["sums"] == []


def test_a_key_grants_its_rights_until_it_is_revoked(gantry: Gantry) -> None:
    gantry.json("topic", "create", "OPEN_ONE")
    made = gantry.json("key", "create", "a script", "--publish", "OPEN_*", "--consume-topic", "OPEN_*")
    assert gantry.run("message", "send", "OPEN_ONE", "x", key=made["key"]).returncode == 0
    forbidden = gantry.run("topic", "create", "OTHER", key=made["key"])
    assert forbidden.returncode == 1
    assert "right" in forbidden.stderr
    assert made["id"] in [item["id"] for item in gantry.json("key", "list")]
    assert gantry.run("key", "revoke", made["id"]).returncode == 0
    refused = gantry.run("message", "send", "OPEN_ONE", "x", key=made["key"])
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert made["id"] not in [item["id"] for item in gantry.json("key", "list")]
    assert made["id"] in [item["id"] for item in gantry.json("key", "list", "--revoked")]


def test_expected_failures_are_one_line(gantry: Gantry, stack: Stack) -> None:
    for words in (
        ["topic", "show", "NO_SUCH"],
        ["topic", "create", "bad name"],
        ["group", "show", "NO_SUCH"],
        ["message", "get", "zz"],
        ["key", "revoke", "no-such"],
        ["offset", "read", "bad name"],
    ):
        done = gantry.run(*words)
        assert done.returncode == 1, (words, done.stdout, done.stderr)
        assert done.stderr.startswith("gantry: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_output_may_be_cut_off(stack: Stack) -> None:
    line = f"{sys.executable} -m gantry.cli topic list --json --data {stack.directory} | true"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment(), check=False)
    assert done.stderr == ""
