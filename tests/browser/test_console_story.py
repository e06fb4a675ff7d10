"""A day of an operator in the console, over a real stack with its scheduler, from the log-in to the charts of lag.

A person does everything through the page. The producers, the consumer that stops and the consumer that fails are clients
of Gantry.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gantry.client import ClientEngine, ClientSettings, PushConsumer, StartPosition
from gantry.http.stack import read_stack
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.consolepage import ConsolePage
from tests.support.consoletexts import ConsoleTexts
from tests.support.stack import Stack

MESSAGES, CONSUMED = 12, 4
DEAD_WITHIN_S, RUN_WITHIN_S = 60.0, 300.0
ROWS = "[...document.querySelectorAll('.data-body [role=row]')]"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1, scheduler=True) as running:
        yield running


@dataclass
class Story:
    """A day in the console: the tab, the texts of its language, and names that no other day has."""

    console: ConsolePage
    stack: Stack
    text: ConsoleTexts
    width: int

    @property
    def topic(self) -> str:
        return f"orders-{self.text.language}-{self.width}"

    @property
    def group(self) -> str:
        return f"billing-{self.text.language}-{self.width}"

    def turn_to(self, feature: str) -> None:
        """Go to a page by the navigation, which a narrow screen hides behind a button."""
        if self.width < 600:
            self.console.click("button", self.text("common:shell.openNavigation"))
        self.console.click("link", self.text(f"{feature}:nav"))
        self.console.wait_until(f"document.querySelector('h1').innerText === {self.text(f'{feature}:title')!r}")
        self.fits()

    def fits(self) -> None:
        """Check that nothing is wider than the screen."""
        assert self.console.evaluate("document.documentElement.scrollWidth") <= self.width

    def see(self, key: str, *, count: int | None = None, **values: object) -> None:
        """Wait for a text."""
        self.console.wait_for_text(self.text(key, count=count, **values))

    def press(self, key: str, **values: object) -> None:
        """Click on a button."""
        self.console.click("button", self.text(key, **values))

    def fill(self, key: str, value: str) -> None:
        """Type into the field with this label."""
        self.console.type_into(self.text(key), value)

    def choose(self, key: str, value: str) -> None:
        """Choose an option of the list with this label."""
        field = (
            "[...document.querySelectorAll('label')].filter(each => each.checkVisibility() && "
            f"each.innerText.trim() === {self.text(key)!r}).at(-1).control"
        )
        change = "dispatchEvent(new Event('change', {bubbles: true}))"
        self.console.evaluate(f"(() => {{ const field = {field}; field.value = {value!r}; field.{change}; }})()")

    def open_row(self, name: str) -> None:
        """Open the row that shows a name."""
        row = f"{ROWS}.find(row => row.innerText.includes({name!r}))"
        self.console.click_on(f"{row}?.querySelector('a, button')")

    def close(self) -> None:
        """Close the dialog or drawer on top."""
        self.press("common:close")
        self.console.wait_until("document.querySelector('[role=dialog]') === null")


@pytest.mark.parametrize(
    ("width", "dark", "language"),
    [(1_280, False, "en"), (320, True, "zh"), (1_280, True, "zh"), (320, False, "en")],
    ids=["1280-light-en", "320-dark-zh", "1280-dark-zh", "320-light-en"],
)
def test_a_day_of_an_operator(console: ConsolePage, stack: Stack, width: int, dark: bool, language: str) -> None:
    story = Story(console, stack, ConsoleTexts(language), width)
    console.forget()
    console.enter("/", width=width, dark=dark, language=language)
    story.see("overview:title")

    create_a_topic_and_send(story)
    find_the_message_by_its_key(story)
    watch_one_arrive(story)
    let_a_group_fall_behind(story)
    run_the_lag_report_and_read_the_verdict(story)
    reset_after_a_preview_and_undo(story)
    let_a_handler_fail(story)
    redrive_the_dead_letters(story)
    recall_a_scheduled_message(story)
    decide_a_transaction(story)

    assert console.policy_breaches() == []
    assert console.violations() == []


def create_a_topic_and_send(story: Story) -> None:
    story.turn_to("topics")
    story.press("topics:create.open")
    story.fill("topics:name", story.topic)
    for setting in ("read_queues", "write_queues"):
        story.fill(f"topics:setting.{setting}", "1")
    story.press("topics:create.submit")
    story.console.wait_until(f"location.pathname === '/console/topics/{story.topic}'")
    story.press("topics:send.open")
    send(story, "order-0", "")
    send(story, "reminder", "2h")
    story.close()
    story.fits()


def send(story: Story, key: str, delay: str) -> None:
    """Send a message with the dialog that is open."""
    story.fill("topics:send.body", f'{{"key": "{key}", "amount": 9223372036854775807}}')
    story.fill("topics:send.keys", key)
    story.fill("topics:send.delay", delay)
    with story.stack.http() as client:
        path = f"/v1/topics/{story.topic}/scheduled" if delay else f"/v1/topics/{story.topic}/messages"
        query = {} if delay else {"key": key}
        story.press("topics:send.submit")
        story.see("topics:send.outcome.stored")
        story.stack.wait_for(lambda: client.get(path, params=query).json()["items"], f"to list {key}")


def find_the_message_by_its_key(story: Story) -> None:
    story.turn_to("messages")
    story.fill("messages:topic", story.topic)
    story.choose("messages:by", "key")
    story.fill("messages:value.key", "order-0")
    story.press("messages:find")
    story.see("messages:count", count=1, shown=1)
    story.fits()
    story.open_row("order-0")
    story.console.wait_for_text('"amount": 9223372036854775807')
    story.close()


def watch_one_arrive(story: Story) -> None:
    story.choose("messages:by", "live")
    story.press("messages:watch")
    # Before the gateway has subscribed, a new message may be missed.
    state, received = story.text("messages:tail.state.open"), story.text("messages:tail.received", received=0)
    story.console.wait_for_text(f"{state} · {received}")
    produce(story, 1)
    story.console.wait_until(f"{ROWS}.some(row => row.innerText.includes('order-1'))")
    story.fits()


def produce(story: Story, first: int, count: int = 1) -> None:
    with story.stack.http() as client:
        for number in range(first, first + count):
            body = {"body": f'{{"order": {number}}}', "keys": [f"order-{number}"]}
            client.post(f"/v1/topics/{story.topic}/messages", json=body).raise_for_status()


def let_a_group_fall_behind(story: Story) -> None:
    """A person makes a group without retries; its consumer takes a few messages and stops."""
    story.turn_to("groups")
    story.press("groups:create.open")
    story.fill("groups:name", story.group)
    story.fill("groups:setting.retry_max_times", "0")
    story.press("groups:create.submit")
    story.console.wait_until(f"location.pathname === '/console/groups/{story.group}'")
    produce(story, 2, MESSAGES - 2)
    with story.stack.http() as client:
        wanted = {"topic": story.topic, "max": CONSUMED, "wait": "10s"}
        pulled = client.post(f"/v1/groups/{story.group}/messages:pull", json=wanted).raise_for_status().json()
        receipts = {"receipts": [message["receipt"] for message in pulled["messages"]]}
        assert len(receipts["receipts"]) == CONSUMED
        client.post(f"/v1/groups/{story.group}/messages:ack", json=receipts).raise_for_status()


def run_the_lag_report_and_read_the_verdict(story: Story) -> None:
    story.turn_to("reports")
    story.console.click("link", story.text("reports:job.lag_report.name"))
    story.press("reports:run.now")
    story.see("reports:run.started", name=story.text("reports:job.lag_report.name"))
    row = f"{ROWS}.some(row => row.innerText.includes({story.group!r}))"
    story.stack.wait_for(lambda: story.console.evaluate(row), "to report the group", timeout_s=RUN_WITHIN_S)
    story.fits()
    story.open_row(story.group)
    story.see("reports:lag.evidence")
    story.close()

    story.turn_to("groups")
    story.open_row(story.group)
    story.see("groups:cause")
    story.see("groups:nextStep")
    story.console.wait_until(f"document.querySelector('dl').innerText.includes('{MESSAGES - CONSUMED}')")
    story.press("groups:history.open")
    chart = f"[...document.querySelectorAll('[role=img]')].find(each => each.ariaLabel === {story.text('groups:history.label')!r})"
    story.console.wait_until(f"{chart}?.querySelector('svg path') != null", what="the chart of the lag")
    story.fits()


def reset_after_a_preview_and_undo(story: Story) -> None:
    story.console.click("tab", story.text("groups:tab.offsets"))
    story.press("groups:reset.open")
    story.choose("groups:reset.to", "earliest")
    story.press("groups:moved.preview")
    story.see("groups:moved.will.again", count=CONSUMED, shown=CONSUMED)
    story.press("groups:reset.submit", name=story.group)
    story.see("groups:moved.did.again", count=CONSUMED, shown=CONSUMED)
    story.close()
    story.press("groups:undo.open")
    story.press("groups:undo.submit")
    story.see("groups:undo.done")
    with story.stack.http() as client:
        (offset,) = client.get(f"/v1/groups/{story.group}/offsets", params={"topic": story.topic}).json()["items"]
    assert offset["committed_offset"] == str(CONSUMED)
    story.fits()


def let_a_handler_fail(story: Story) -> None:
    """A consumer of the group fails each message, which the group does not try again."""

    async def fail(message: StoredMessage) -> None:
        raise ValueError(f"no stock for {message.keys}")

    async def run() -> None:
        namesrv = tuple(read_stack(story.stack.directory).namesrv)
        engine = ClientEngine(ClientSettings(namesrv=namesrv), clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            first = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            async with PushConsumer(engine, story.group, [story.topic], fail, start=first):
                await asyncio.wait_for(asyncio.to_thread(wait_for_letters, story), DEAD_WITHIN_S)
        finally:
            await engine.stop()

    asyncio.run(run())


def wait_for_letters(story: Story) -> None:
    with story.stack.http() as client:
        story.stack.wait_for(
            lambda: len(client.get(f"/v1/groups/{story.group}/dead-letters").json()["items"]) == MESSAGES - CONSUMED,
            "to have the dead letters",
            timeout_s=DEAD_WITHIN_S,
        )


def redrive_the_dead_letters(story: Story) -> None:
    letters = MESSAGES - CONSUMED
    story.turn_to("dead-letters")
    story.fill("dead-letters:group", story.group)
    story.console.wait_until(f"{ROWS}.some(row => row.innerText.includes('order-{MESSAGES - 1}'))")
    story.fits()
    story.press("dead-letters:redrive.openAll")
    story.press("dead-letters:redrive.preview")
    story.see("dead-letters:redrive.count", count=letters, shown=letters)
    story.press("dead-letters:redrive.submit")
    story.see("dead-letters:progress.done")
    story.see("dead-letters:progress.counts", done=letters, failed=0)


def recall_a_scheduled_message(story: Story) -> None:
    story.turn_to("scheduled")
    story.fill("scheduled:topic", story.topic)
    story.open_row("reminder")
    story.press("scheduled:recall.open")
    story.see("scheduled:recall.final")
    story.press("scheduled:recall.open")
    story.see("scheduled:outcome.recalled.detail")
    story.fits()
    with story.stack.http() as client:
        path = f"/v1/topics/{story.topic}/scheduled"
        story.stack.wait_for(lambda: not client.get(path).json()["items"], "to drop the message")


def decide_a_transaction(story: Story) -> None:
    with story.stack.http() as client:
        half = {"body": "{}", "keys": ["payment"], "group": f"{story.group}-tx", "check_immunity": "1h"}
        begun = client.post(f"/v1/topics/{story.topic}/transactions", json=half).raise_for_status().json()
        story.turn_to("transactions")
        story.fill("transactions:topic", story.topic)
        story.open_row(begun["transaction"])
        story.press("transactions:commit.open")
        story.see("transactions:decision.final", group=f"{story.group}-tx")
        story.press("transactions:commit.open")
        story.see("transactions:outcome.committed")
        story.fits()
        found = client.get(f"/v1/topics/{story.topic}/messages", params={"key": "payment"}).json()["items"]
        assert [message["message_id"] for message in found] == [begun["transaction"]]
