"""Dead letters over HTTP against real brokers: listed, exported, and sent again once."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.http import GantryClient
from gantry.model.message import Message, MessageQueue
from gantry.model.names import dlq_topic
from gantry.model.propertyname import PropertyName
from gantry.model.topic import Perm, TopicConfig
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from spark.postgres import connect
from tests.support.stack import Stack

BROKERS = ("broker-a", "broker-b")


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def _body(number: int) -> bytes:
    return b"letter %d" % number


class Group:
    """A group of its own for a test, with a topic and with dead letters, in turn on both brokers."""

    def __init__(
        self, stack: Stack, http: httpx.Client, name: str, letters: int, body: Callable[[int], bytes] = _body
    ) -> None:
        self.name, self.topic = name, f"{name}-topic"
        self.path = f"/v1/groups/{name}/dead-letters"
        self.http = http
        assert http.put(f"/v1/groups/{name}", json={}).status_code == 201
        assert http.put(f"/v1/topics/{self.topic}", json={"read_queues": 1, "write_queues": 1}).status_code == 201
        self.ids = asyncio.run(self._bury(stack, letters, body))

    async def _bury(self, stack: Stack, count: int, body: Callable[[int], bytes]) -> list[str]:
        settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
        engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            config = TopicConfig(dlq_topic(self.name), read_queue_nums=1, write_queue_nums=1, perm=Perm.WRITE)
            await Admin(engine).create_topic(config)
            retry = TopicConfig(f"%RETRY%{self.name}", read_queue_nums=1, write_queue_nums=1)
            await Admin(engine).create_topic(retry)
            producer = Producer(engine, "bury")
            ids = []
            for number in range(count):
                properties = {
                    PropertyName.TAGS: "even" if number % 2 == 0 else "odd",
                    PropertyName.RETRY_TOPIC: self.topic,
                    PropertyName.ORIGIN_MESSAGE_ID: f"origin-{number}",
                    "number": str(number),
                }
                queue = MessageQueue(dlq_topic(self.name), BROKERS[number % 2], 0)
                sent = await producer.send(Message(queue.topic, body(number), properties), queue=queue)
                ids.append(sent.message_id)
            return ids
        finally:
            await engine.stop()

    async def die_again(self, stack: Stack, message_id: str) -> None:
        settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
        engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            properties = {PropertyName.RETRY_TOPIC: self.topic, PropertyName.UNIQ_KEY: message_id, "number": "0"}
            queue = MessageQueue(dlq_topic(self.name), BROKERS[1], 0)
            await Producer(engine, "bury").send(Message(queue.topic, b"letter 0", properties), queue=queue)
        finally:
            await engine.stop()

    def page(self, **params: Any) -> dict[str, Any]:
        answer = self.http.get(self.path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def redrive(self, **request: Any) -> dict[str, Any]:
        answer = self.http.post(f"{self.path}:redrive", json=request)
        assert answer.status_code == (200 if request.get("dry_run") else 202), answer.text
        return answer.json()

    def redriven(self, **request: Any) -> dict[str, Any]:
        """Start a redrive and return its job at the end."""
        job = self.redrive(**request)
        deadline = time.monotonic() + 30
        while job["ended_at"] is None:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
            job = self.http.get(f"/v1/jobs/{job['job']}").json()
        return job

    def messages(self, topic: str) -> list[dict[str, Any]]:
        found = []
        for queue in self.http.get(f"/v1/topics/{topic.replace('%', '%25')}/queues").json()["items"]:
            path = f"/v1/topics/{topic.replace('%', '%25')}/queues/{queue['broker']}/{queue['queue_id']}/messages"
            found += self.http.get(
                path, params={"offset": queue["min_offset"] or "0", "limit": 1000, "system": "true"}
            ).json()["messages"]
        return found


def numbers(letters: list[dict[str, Any]]) -> list[int]:
    return [int(letter["properties"]["number"]) for letter in letters]


def test_letters_are_listed_newest_first_from_all_brokers(stack, http):
    group = Group(stack, http, "listed", 45)
    first = group.page(limit=20)
    letter = first["items"][0]
    assert (letter["body"], letter["topic"], letter["tag"]) == ("letter 44", "%DLQ%listed", "even")
    assert letter["origin"] == {"topic": "listed-topic", "message_id": "origin-44"}
    assert (letter["dead_at"], letter["redriven_at"], letter["attempts"]) == (letter["stored_at"], None, 0)
    found, cursor = numbers(first["items"]), first["next_cursor"]
    while cursor is not None:
        page = group.page(limit=20, cursor=cursor)
        found, cursor = found + numbers(page["items"]), page["next_cursor"]
    assert found == [*reversed(range(45))]
    odd = group.page(limit=100, tag="odd")
    assert numbers(odd["items"]) == [*reversed(range(1, 45, 2))]
    assert group.page(topic="other")["items"] == []
    middle = group.page(limit=1, cursor=first["next_cursor"])["items"][0]["dead_at"]
    assert set(numbers(group.page(limit=100, **{"from": middle})["items"])) >= set(range(24, 45))
    assert all(number <= 24 for number in numbers(group.page(limit=100, to=middle)["items"]))


def test_large_letters_are_all_listed(stack, http):
    # A body of quotes takes twice as much in JSON; a producer compresses it to a few hundred bytes.
    group = Group(stack, http, "large", 14, lambda number: b'"' * (1_000_000 + number))
    found, sizes, cursor = [], [], None
    while not sizes or cursor is not None:
        page = group.page(limit=100, **({} if cursor is None else {"cursor": cursor}))
        found, cursor = found + page["items"], page["next_cursor"]
        sizes.append(len(page["items"]))
    assert numbers(found) == [*reversed(range(14))]
    assert [len(letter["body"]) for letter in found] == [1_000_000 + number for number in reversed(range(14))]
    assert max(sizes) == 6
    exported = [json.loads(line) for line in http.get(f"{group.path}:export").text.splitlines()]
    assert sorted(numbers(exported)) == [*range(14)]
    job = group.redriven(filter={"tag": "even"})
    assert (job["state"], job["done"], job["failed"]) == ("done", 7, 0)


def test_an_export_has_one_letter_a_line(stack, http):
    group = Group(stack, http, "exported", 70)
    answer = http.get(f"{group.path}:export", params={"format": "ndjson"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    letters = [json.loads(line) for line in answer.text.splitlines()]
    assert numbers(letters) == [*range(0, 70, 2), *range(1, 70, 2)]
    assert numbers([json.loads(line) for line in http.get(f"{group.path}:export?tag=odd").text.splitlines()]) == [
        *range(1, 70, 2)
    ]
    empty = Group(stack, http, "unharmed", 0)
    assert http.get(f"{empty.path}:export").text == ""
    assert empty.page() == {"items": [], "next_cursor": None}


def test_a_letter_that_is_redriven_twice_is_sent_once(stack, http):
    group = Group(stack, http, "redriven", 40)
    tried = group.redrive(filter={"tag": "even"}, dry_run=True)
    assert (tried["selected"], len(tried["sample"])) == (20, 10)
    assert group.messages("%RETRY%redriven") == []
    job = group.redriven(filter={"tag": "even"}, rate_per_s=1000)
    assert (job["state"], job["done"], job["failed"], job["error"]) == ("done", 20, 0, None)
    assert group.redrive(filter={"tag": "even"}, dry_run=True)["selected"] == 0
    again = group.redriven(filter={}, rate_per_s=1000)
    # The others were sent before, so they are not among the letters of this job.
    assert (again["state"], again["done"], again["total"]) == ("done", 20, 20)
    sent = group.messages("%RETRY%redriven")
    assert sorted(numbers(sent)) == [*range(40)]
    assert {message["message_id"] for message in sent} == set(group.ids)
    system = sent[0]["system_properties"]
    assert system[PropertyName.RETRY_TOPIC] == group.topic
    assert PropertyName.ORIGIN_MESSAGE_ID not in system
    assert all(letter["redriven_at"] is not None for letter in group.page(limit=100)["items"])
    assert group.messages(group.topic) == []


def test_letters_named_by_id_go_back_to_their_topic(stack, http):
    group = Group(stack, http, "named", 5)
    stored_id = group.page(limit=1)["items"][0]["stored_id"]
    job = group.redriven(message_ids=[group.ids[1], stored_id, group.ids[1]], to="origin")
    assert (job["state"], job["done"], job["total"]) == ("done", 2, 2)
    assert sorted(numbers(group.messages(group.topic))) == [1, 4]
    unknown = http.post(f"{group.path}:redrive", json={"message_ids": ["7F" * 16]})
    assert (unknown.status_code, unknown.json()["type"].rpartition("/")[2]) == (404, "unknown-message")


def test_a_letter_that_died_again_is_found_by_its_message_id(stack, http):
    group = Group(stack, http, "again", 1)
    assert group.redriven(message_ids=group.ids)["done"] == 1
    # The message dies again: its second letter has the same message id.
    asyncio.run(group.die_again(stack, group.ids[0]))
    job = group.redriven(message_ids=group.ids)
    assert (job["state"], job["done"], job["failed"]) == ("done", 1, 0)
    assert len(group.messages("%RETRY%again")) == 2
    assert group.redriven(message_ids=group.ids)["done"] == 0


def test_letters_that_can_not_be_sent_are_counted_with_the_reason(stack, http):
    group = Group(stack, http, "orphaned", 4)
    version = http.get(f"/v1/topics/{group.topic}").headers["etag"]
    assert http.delete(f"/v1/topics/{group.topic}", headers={"If-Match": version}).status_code == 204
    job = group.redriven(filter={}, to="origin", rate_per_s=1000)
    assert (job["state"], job["done"], job["failed"]) == ("done", 0, 4)
    assert job["error"].startswith(f"4 letters can't be sent; the last one: topic {group.topic}: "), job["error"]


def test_the_pace_is_kept_and_a_cancelled_redrive_stops(stack, http):
    group = Group(stack, http, "paced", 30)
    began = time.monotonic()
    job = group.redrive(filter={}, rate_per_s=5)
    # It takes 6 s, and tells every second how far it is; it is cancelled within.
    while (done := http.get(f"/v1/jobs/{job['job']}").json()["done"]) == 0:
        assert time.monotonic() - began < 4, "the redrive does not tell how far it is"
        time.sleep(0.05)
    assert done < 30
    assert http.post(f"/v1/jobs/{job['job']}:cancel").json()["cancel_requested"] is True
    while (job := http.get(f"/v1/jobs/{job['job']}").json())["ended_at"] is None:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert job["state"] == "cancelled"
    sent = len(group.messages("%RETRY%paced"))
    assert job["done"] == sent
    assert 2 <= sent <= 5 * (time.monotonic() - began) + 1
    rest = group.redriven(filter={}, rate_per_s=1000)
    assert rest["state"] == "done"
    assert sorted(numbers(group.messages("%RETRY%paced"))) == [*range(30)]


def test_a_letter_whose_outcome_is_unknown_is_searched_for_before_it_is_sent(stack, http):
    group = Group(stack, http, "uncertain", 6)
    group.redriven(message_ids=group.ids[:3], rate_per_s=1000)
    # As if the gateway had died after it sent the first three, and before it began with the others.
    with connect(stack.facts["postgres"], application="gantry-test") as connection:
        connection.execute("UPDATE dead_letter_redrives SET sent_at = NULL WHERE group_name = 'uncertain'")
    job = group.redriven(filter={}, rate_per_s=1000)
    assert (job["state"], job["done"]) == ("done", 6)
    assert sorted(numbers(group.messages("%RETRY%uncertain"))) == [*range(6)]


def test_rows_of_redrives_are_deleted_after_a_year(stack, http):
    group = Group(stack, http, "aged", 2)
    group.redriven(message_ids=group.ids[:1])
    ages = {"old": 366, "young": 364}
    with connect(stack.facts["postgres"], application="gantry-test") as connection:
        for name, days in ages.items():
            connection.execute(
                "INSERT INTO dead_letter_redrives (group_name, stored_id, job_id, began_at, sent_at)"
                " VALUES ('aged', %s, gen_random_uuid(), now() - make_interval(days => %s), now())",
                (name, days),
            )
        group.redriven(message_ids=group.ids[1:])
        rows = connection.execute("SELECT stored_id FROM dead_letter_redrives WHERE group_name = 'aged'").fetchall()
    assert {row[0] for row in rows} & set(ages) == {"young"}
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({}, "/message_ids"),
        ({"message_ids": ["x"], "filter": {}}, "/message_ids"),
        ({"message_ids": []}, "/message_ids"),
        ({"filter": {"colour": "red"}}, "/filter/colour"),
        ({"filter": {}, "to": "nowhere"}, "/to"),
        ({"filter": {}, "rate_per_s": 0}, "/rate_per_s"),
        ({"filter": {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}}, "/filter/to"),
    ],
)
def test_a_redrive_that_makes_no_sense_is_refused(stack, http, request_body, field):
    http.put("/v1/groups/refused", json={})
    answer = http.post("/v1/groups/refused/dead-letters:redrive", json=request_body)
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text


def test_a_filter_with_an_unknown_topic_is_refused_by_name(stack, http):
    http.put("/v1/groups/refused", json={})
    answer = http.post("/v1/groups/refused/dead-letters:redrive", json={"filter": {"topic": "NO_SUCH_TOPIC"}})
    assert (answer.status_code, answer.json()["field"]) == (404, "/filter/topic")
    assert "NO_SUCH_TOPIC" in answer.json()["detail"]


def test_rights(stack, http):
    group = Group(stack, http, "guarded", 2)
    made = http.post("/v1/keys", json={"name": "t", "rights": {"consume": {"topics": ["x"], "groups": ["guarded"]}}})
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    with httpx.Client(base_url=stack.facts["http"], headers=headers, trust_env=False) as other:
        assert other.get(group.path).json()["items"] == []
        assert other.get("/v1/groups/listed/dead-letters").status_code == 403
        assert other.post(f"{group.path}:redrive", json={"filter": {}}).status_code == 403
        job = group.redriven(filter={})
        assert other.get(f"/v1/jobs/{job['job']}").status_code == 404
        assert other.get("/v1/jobs").json()["items"] == []
    assert http.get("/v1/groups/nobody/dead-letters").status_code == 404
    listed = http.get("/v1/jobs", params={"kind": "redrive", "state": "done", "limit": 1}).json()["items"]
    assert listed[0]["job"] == job["job"]


def test_the_command_line_lists_exports_and_redrives(stack, http, tmp_path):
    group = Group(stack, http, "typed", 7)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gantry.cli", *words, "--data", str(stack.directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    listed = json.loads(run("dlq", "list", "typed", "--limit", "3", "--json").stdout)
    assert numbers(listed) == [6, 5, 4]
    assert "typed-topic" in run("dlq", "list", "typed").stdout
    assert json.loads(run("dlq", "show", "typed", group.ids[2], "--json").stdout)["body"] == "letter 2"
    assert run("dlq", "export", "typed", "-o", str(tmp_path / "letters")).returncode == 0
    assert len((tmp_path / "letters").read_text().splitlines()) == 7
    assert run("dlq", "redrive", "typed").returncode == 2
    assert "7 letters would be sent" in run("dlq", "redrive", "typed", "--all", "--dry-run").stdout
    job = json.loads(run("dlq", "redrive", "typed", group.ids[0], "--wait", "--json").stdout)
    assert (job["state"], job["done"]) == ("done", 1)
    assert json.loads(run("job", "show", job["job"], "--json").stdout)["arguments"]["group"] == "typed"
    assert job["job"] in run("job", "list", "--kind", "redrive").stdout
    refused = run("job", "cancel", job["job"])
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is done and can't become cancelled" in refused.stderr
    unknown = run("dlq", "export", "nobody")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'nobody' does not exist" in unknown.stderr


def test_the_client_library_lists_exports_and_redrives(stack, http):
    group = Group(stack, http, "library", 4)
    with GantryClient.from_stack(stack.directory) as client:
        letters = client.list_dead_letters("library", tag="even", limit=1)
        assert [(letter.text, letter.origin.message_id, letter.redriven_at) for letter in letters] == [
            ("letter 2", "origin-2", None)
        ]
        lines = b"".join(client.export_dead_letters("library")).splitlines()
        assert sorted(json.loads(line)["body"] for line in lines) == [f"letter {number}" for number in range(4)]
        assert client.try_redrive("library", filter={"tag": "odd"}).selected == 2
        job = client.redrive_dead_letters("library", message_ids=[letters[0].message_id])
        deadline = time.monotonic() + 30
        while not job.is_over:
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
            job = client.get_job(job.job)
        assert (job.state, job.done, job.failed, job.total) == ("done", 1, 0, 1)
        assert job.job in {one.job for one in client.list_jobs(state="done")}
    assert [message["body"] for message in group.messages("%RETRY%library")] == ["letter 2"]


def test_a_group_that_pulls_with_receipts_gets_its_redriven_letters(stack, http):
    """Its retries are in a topic of their own for each topic, which no broker has made: the group retries nothing."""
    group = Group(stack, http, "popped", 0)
    assert http.put(f"/v1/groups/{group.name}", json={"retry_max_times": 0}).status_code == 200
    bodies = {f"popped {number}" for number in range(8)}
    for body in sorted(bodies):
        assert http.post(f"/v1/topics/{group.topic}/messages", json={"body": body}).status_code == 201
    pulled = pull(group, len(bodies))
    assert set(pulled) == bodies
    receipts = {"receipts": list(pulled.values()), "delay": "0s"}
    assert http.post(f"/v1/groups/{group.name}/messages:nack", json=receipts).status_code == 200
    deadline = time.monotonic() + 30
    while len(group.page(limit=100)["items"]) < len(bodies):
        assert time.monotonic() < deadline, "the messages did not die"
        time.sleep(0.1)
    job = group.redriven(filter={}, rate_per_s=1000)
    assert (job["state"], job["done"], job["failed"]) == ("done", len(bodies), 0), job
    again = pull(group, len(bodies))
    assert set(again) == bodies
    acked = http.post(f"/v1/groups/{group.name}/messages:ack", json={"receipts": list(again.values())})
    assert {result["outcome"] for result in acked.json()["results"]} == {"acked"}
    # None is sent twice, and none is left for consumers without receipts.
    assert group.redriven(filter={}, rate_per_s=1000)["done"] == 0
    assert group.messages(f"%RETRY%{group.name}") == []


def pull(group: Group, count: int) -> dict[str, str]:
    """Pull messages of a group; return their bodies with their receipts."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        answer = group.http.post(
            f"/v1/groups/{group.name}/messages:pull", json={"topic": group.topic, "max": count, "wait": "2s"}
        )
        assert answer.status_code == 200, answer.text
        found |= {message["body"]: message["receipt"] for message in answer.json()["messages"]}
    return found
