"""Topics in the console, over a real stack: create, send, see the queue grow, change, two people, delete; 5,000 topics."""

from collections.abc import Iterator

import pytest

from tests.support.consolepage import ConsolePage
from tests.support.stack import Stack

TOPIC = "orders-eu"
MANY = 5_000
# Each setting that another person changed: its name, what the form had read, what they saved, what the form says.
OTHERS_CHANGES = """[...document.querySelectorAll("[role=alert] tbody tr")].map(
  row => [...row.cells].map(cell => cell.innerText.trim()))"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def test_a_topic_from_its_creation_to_its_end(console: ConsolePage, stack: Stack) -> None:
    console.enter("/topics")
    console.click("button", "Create")
    console.type_into("Topic", TOPIC)
    console.type_into("Queues to read", "2")
    console.type_into("Queues to write", "2")
    console.press("Enter")
    console.wait_until(f"location.pathname === '/console/topics/{TOPIC}'")

    console.click("button", "Send a message")
    console.type_into("Body", '{"amount": 9223372036854775807}')
    console.type_into("Keys", "order-1")
    console.click("button", "Send")
    console.wait_for_text("The message is stored.")
    console.click("button", "Close")
    console.wait_for_text(" ago")
    console.click("tab", "Producers")
    console.wait_for_text("GANTRY_GATEWAY")

    change_beside_another(console, stack)

    console.click("button", "Delete")
    console.type_into(f"Type {TOPIC} to confirm", TOPIC)
    console.press("Enter")
    console.wait_until("location.pathname === '/console/topics'")
    with stack.http() as client:
        assert client.get(f"/v1/topics/{TOPIC}").status_code == 404


def change_beside_another(console: ConsolePage, stack: Stack) -> None:
    """Change a topic that another person changes at the same time: the second sees the difference."""
    console.click("tab", "Settings")
    console.type_into("Queues to read", "4")
    with stack.http() as client:
        assert client.put(f"/v1/topics/{TOPIC}", json={"order": True}).status_code == 200
    for text in ("Another person changed these settings", "The settings are saved."):
        console.click("button", "Save")
        console.wait_until("document.querySelector('[role=dialog]') !== null")
        console.click("button", "Save")
        console.wait_for_text(text)
        console.wait_until("document.querySelector('[role=dialog]') === null")
        if text.startswith("Another"):
            assert console.evaluate(OTHERS_CHANGES) == [["Ordered", "false", "true", "false"]]
    with stack.http() as client:
        topic = client.get(f"/v1/topics/{TOPIC}").json()
    assert (topic["read_queues"], topic["order"]) == (4, True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1_280, 320])
def test_pages_of_topics_fit_and_have_no_violations(console: ConsolePage, stack: Stack, width: int, dark: bool) -> None:
    with stack.http() as client:
        assert client.put("/v1/topics/fits", json={}).status_code in {200, 201}
        assert client.post("/v1/topics/fits/messages", json={"body": "m"}).status_code == 201
    for path, text in (
        ("/topics", "fits"),
        ("/topics/fits", "broker-a / 0"),
        ("/topics/fits?tab=producers", "GANTRY_GATEWAY"),
        ("/topics/fits?tab=settings", "Save"),
    ):
        console.enter(path, width=width, dark=dark)
        console.wait_for_text(text)
        assert console.evaluate("document.documentElement.scrollWidth") <= width, path
        assert console.violations() == [], path


def test_5000_topics_are_searched_at_once(console: ConsolePage) -> None:
    """The gateway's answer is replaced, because making 5,000 real topics takes minutes; the page is the real one."""
    console.enter("/topics")
    console.wait_for_text("Topics")
    console.evaluate(f"""(() => {{
      const answer = window.fetch;
      window.fetch = async (url, options) => {{
        if (!String(url).startsWith('/v1/topics?')) return answer(url, options);
        const page = Number(new URL(url, location).searchParams.get('cursor') ?? 0);
        const items = Array.from({{length: 1000}}, (_, at) => ({{
          topic: 'many-' + (page * 1000 + at), read_queues: 4, write_queues: 4, perm: 'rw', order: false, brokers: null,
          duplicate_window_ms: 0, state: 'applied', pending: [], origin: 'api', observed: [], metadata: 'available',
          created_at: null, updated_at: null}}));
        const next_cursor = page < {MANY // 1_000 - 1} ? String(page + 1) : null;
        return Response.json({{items, next_cursor, metadata: 'available'}});
      }};
    }})()""")
    console.click("link", "Overview")
    console.wait_for_text("Brokers")
    console.click("link", "Topics")
    console.click_on("document.querySelector('[role=switch]')")
    console.wait_for_text("5,000 topics")
    rows = "document.querySelectorAll('[role=row]').length"
    assert console.evaluate(rows) < 80
    console.evaluate("(pane => { pane.scrollTop = pane.scrollHeight; })(document.querySelector('.table-scroll'))")
    console.wait_for_text("many-4999")
    assert console.evaluate(rows) < 80
    # The field is found by its label, which it has as a name.
    search = "document.querySelector('input[aria-label=\"Search topics\"]')"
    console.focus_on(search)
    console.insert("many-4999")
    console.wait_for_text("1 of 5,000 topics")
    console.wait_until("location.search.includes('q=many-4999')")


def test_cards_of_a_telephone_are_sorted_by_a_list(console: ConsolePage, stack: Stack) -> None:
    with stack.http() as client:
        for name in ("CARD-A", "CARD-B", "CARD-C"):
            assert client.put(f"/v1/topics/{name}", json={}).status_code in (200, 201)
    console.enter("/topics?q=CARD-", width=320)
    console.wait_for_text("CARD-C")
    cells = "[...document.querySelectorAll('.data-body .data-row > :first-child')]"
    names = f"{cells}.map((cell) => cell.innerText.slice(0, 6)).join()"
    console.wait_until(f"{names} === 'CARD-A,CARD-B,CARD-C'")
    console.click("button", "Reverse the order")
    console.wait_until(f"{names} === 'CARD-C,CARD-B,CARD-A'")
