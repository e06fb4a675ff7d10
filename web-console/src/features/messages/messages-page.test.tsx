// @vitest-environment jsdom
import { act, fireEvent, screen, waitFor, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { MessagesPage } from "./messages-page";

afterEach(() => vi.unstubAllGlobals());

const SEARCH = "GET /v1/topics/{topic}/messages";
const OPERATIONS = [
  "GET /v1/messages/{id}",
  "GET /v1/messages/{id}/trace",
  "GET /v1/stream",
  "POST /v1/tickets",
  "POST /v1/topics/{topic}/messages",
];
const HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe";

const message = (id: string, more: object = {}) => ({
  message_id: id,
  stored_id: `S${id}`,
  topic: "orders",
  broker: "broker-a",
  queue_id: 0,
  queue_offset: "9007199254740993",
  body: `body of ${id}`,
  encoding: "text",
  tag: null,
  keys: [`key-${id}`],
  properties: {},
  born_at: "2026-01-01T00:00:00.000Z",
  born_host: "10.0.0.1:1",
  stored_at: `2026-01-01T00:00:0${id}.000Z`,
  reconsume_times: 0,
  size: 200,
  ...more,
});
const page = (items: object[], next_cursor: string | null = null, missing: object[] = []) => ({
  json: { items, next_cursor, scanned: "1", truncated: next_cursor !== null || missing.length > 0, missing },
});
const bodies = () =>
  screen
    .getAllByRole("row")
    .slice(1)
    .map((row) => /body of \d/.exec(row.textContent)?.[0]);

test("messages of a time come page by page, and go on where they ended", async () => {
  const sent = stubGateway({
    [SEARCH]: (call) =>
      call.query.cursor === undefined ? page([message("1"), message("2"), message("3")], "c1") : page([message("4")]),
  });
  const times = "value=2026-01-01T00:00:00.000Z&until=2026-01-02T00:00:00.000Z";
  const at = `/messages?topic=orders&${times}&tags=eu`;
  await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  expect(await screen.findByText(/3 messages · there may be more/)).toBeTruthy();
  expect(bodies()).toEqual(["body of 1", "body of 2", "body of 3"]);
  fireEvent.click(screen.getByRole("button", { name: "Load more" }));
  expect(await screen.findByText("4 messages")).toBeTruthy();
  const query = { from: "2026-01-01T00:00:00.000Z", to: "2026-01-02T00:00:00.000Z", filter: "eu", limit: "100" };
  expect(sent.map((call) => call.query)).toEqual([query, { ...query, cursor: "c1" }]);
});

test("queues that can't be read are named, so that a part does not look like all", async () => {
  const sent = stubGateway({
    [SEARCH]: page([message("1")], null, [
      { broker: "broker-a", queue_id: 1, reason: "group billing has never committed an offset here" },
      { broker: "broker-a", queue_id: 2, reason: "its broker does not answer" },
    ]),
  });
  const at = "/messages?by=group&topic=orders&value=billing&sql=a%20%3E%201";
  await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  const alert = await screen.findByRole("alert", { name: "2 queues are not in the result" });
  expect(
    within(alert)
      .getAllByRole("listitem")
      .map((item) => item.textContent),
  ).toEqual([
    "broker-a / 1: group billing has never committed an offset here",
    "broker-a / 2: its broker does not answer",
  ]);
  expect(sent.map((call) => call.query)).toEqual([{ not_consumed_by: "billing", sql: "a > 1", limit: "100" }]);
});

test("the same search again shows what has arrived since", async () => {
  let items: object[] = [];
  stubGateway({ [SEARCH]: () => page(items) });
  await renderView(<MessagesPage />, {
    path: "/messages",
    at: "/messages?by=key&topic=orders&value=key-1",
    operations: OPERATIONS,
  });
  expect(await screen.findByText("No message matches.")).toBeTruthy();
  items = [message("1")];
  fireEvent.click(screen.getByRole("button", { name: "Find" }));
  expect(await screen.findByText("1 message")).toBeTruthy();
});

test("a wrong filter is an error and no empty result", async () => {
  stubGateway({ [SEARCH]: refused("invalid-argument", 400, "sql: expected a value at 3") });
  const at = "/messages?by=group&topic=orders&value=billing&sql=a%20%3E";
  await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  expect(await screen.findByText("sql: expected a value at 3")).toBeTruthy();
});

test("a message that a decision delivered leads to its transaction; others do not", async () => {
  let kind = "half";
  const event = {
    at: message("1").stored_at,
    broker: "broker-a",
    group: "TX",
    client: null,
    attempt: null,
    detail: "",
  };
  stubGateway({
    "GET /v1/topics/{topic}/messages": { json: { items: [], next_cursor: null, scanned: "1", truncated: false } },
    "GET /v1/messages/{id}": { json: message("1") },
    "GET /v1/messages/{id}/trace": () => ({
      json: { message_id: "T1", topic: "orders", events: [{ ...event, kind }], groups: [], missing: [] },
    }),
  });
  const at = "/messages?by=key&topic=orders&value=key-1&message=S1";
  const operations = [...OPERATIONS, "GET /v1/transactions"];
  const view = await renderView(<MessagesPage />, { path: "/messages", at, operations });
  const link = await screen.findByRole("link", { name: "Open its transaction" });
  expect(link.getAttribute("href")).toBe("/transactions?transaction=T1");
  view.unmount();
  kind = "stored";
  await renderView(<MessagesPage />, { path: "/messages", at, operations });
  const life = await screen.findByRole("region", { name: "Life of the message" });
  expect(await within(life).findByText("Stored")).toBeTruthy();
  expect(screen.queryByRole("link", { name: "Open its transaction" })).toBeNull();
});

test("a message opens with its body as text, its life, and is sent again after a question", async () => {
  const one = message("1", { body: HOSTILE, properties: { origin: "web" } });
  const sent = stubGateway({
    "GET /v1/topics/{topic}/messages": { json: { items: [one], next_cursor: null, scanned: "1", truncated: true } },
    "GET /v1/messages/{id}": { json: one },
    "GET /v1/messages/{id}/trace": {
      json: {
        message_id: "1",
        topic: "orders",
        events: [
          {
            at: one.stored_at,
            kind: "stored",
            broker: "broker-a",
            group: null,
            client: null,
            attempt: null,
            detail: "",
          },
        ],
        groups: [{ group: "billing", state: "pending", since: null, why: "the offset is before it" }],
        missing: ["no client traces"],
      },
    },
    "POST /v1/topics/{topic}/messages": { status: 201, json: { outcome: "stored", message_id: "NEW" } },
  });
  const at = "/messages?by=key&topic=orders&value=key-1";
  const { address } = await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  expect(await screen.findByText(/1 message · the search reached a limit/)).toBeTruthy();
  fireEvent.click(
    within(screen.getByRole("table", { name: "Messages" }))
      .getAllByRole("button")
      .at(-1) as HTMLElement,
  );
  const drawer = await screen.findByRole("dialog", { name: "Message" });
  expect((await within(drawer).findByLabelText("Body")).textContent).toBe(
    "<img src=x onerror=alert(1)>\\u{202e}gnp.exe",
  );
  expect(address()).toContain("message=S1");
  const life = await within(drawer).findByRole("region", { name: "Life of the message" });
  expect((await within(life).findByRole("listitem")).textContent).toBe("pending billing the offset is before it");
  expect(within(life).getByText("Not known: no client traces")).toBeTruthy();
  fireEvent.click(within(drawer).getByRole("button", { name: "Send again" }));
  const question = await screen.findByRole("dialog", { name: "Send this message again?" });
  fireEvent.click(within(question).getByRole("button", { name: "Send again" }));
  expect(await screen.findByText("Stored as NEW.")).toBeTruthy();
  expect(sent.find((call) => call.method === "POST")?.body).toEqual({
    body: HOSTILE,
    encoding: "text",
    keys: ["key-1"],
    properties: { origin: "web" },
  });
});

class Wire {
  static last: Wire;
  readyState = 1;
  sent: Record<string, unknown>[] = [];
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: object) => void) | null = null;

  constructor() {
    Wire.last = this;
  }

  send(text: string) {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }

  close() {
    this.readyState = 3;
  }

  say(frame: object) {
    act(() => this.onmessage?.({ data: JSON.stringify(frame) }));
  }
}

test("a live tail shows what comes, gives credit, counts what it does not show, and pauses", async () => {
  vi.stubGlobal("WebSocket", Wire);
  stubGateway({ "POST /v1/tickets": { status: 201, json: { ticket: "t1", expires_at: "" } } });
  const at = "/messages?by=live&topic=orders&tags=eu";
  await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  await waitFor(() => {
    expect(Wire.last).toBeDefined();
  });
  Wire.last.say({ type: "welcome" });
  Wire.last.say({ type: "subscribed", subscription: "s1" });
  const batch = Array.from({ length: 520 }, (_, at_) => message(String(at_ % 10), { stored_id: `S${at_}` }));
  Wire.last.say({ type: "messages", subscription: "s1", receipt: "r", messages: batch });
  Wire.last.say({ type: "state", subscription: "s1", in_flight: 0, reason: "skipped", skipped: "9007199254740993" });
  expect(Wire.last.sent).toHaveLength(1); // What is not in the view yet gives no credit back.
  expect((await screen.findByText(/520 received/)).textContent).toBe(
    "Live · 520 received · 20 older ones no longer shown · 9,007,199,254,740,993 stored messages skipped",
  );
  fireEvent.click(screen.getByRole("button", { name: "Pause" }));
  expect(Wire.last.sent).toEqual([
    {
      type: "subscribe",
      id: "1",
      mode: "tail",
      topic: "orders",
      rate_per_s: 100,
      credit: { messages: 4_000, bytes: 16_777_216 },
      filter: "eu",
    },
    { type: "credit", subscription: "s1", messages: 520, bytes: 104_000 },
    { type: "pause", subscription: "s1" },
  ]);
  fireEvent.click(screen.getByRole("button", { name: "Resume" }));
  expect(Wire.last.sent.at(-1)).toEqual({ type: "resume", subscription: "s1" });
  expect(screen.queryByRole("alert")).toBeNull();
});

test("the form asks for what the way needs, and the search is in the address", async () => {
  stubGateway({ "GET /v1/topics/{topic}/messages": { json: { items: [], truncated: false } } });
  const { address } = await renderView(<MessagesPage />, { path: "/messages", operations: OPERATIONS });
  expect(await screen.findByText("Choose a topic and how to find its messages.")).toBeTruthy();
  fireEvent.change(screen.getByRole("combobox", { name: "Find by" }), { target: { value: "key" } });
  expect(screen.queryByRole("textbox", { name: "SQL" })).toBeNull();
  fireEvent.change(screen.getByRole("textbox", { name: /^Topic/ }), { target: { value: "orders" } });
  fireEvent.change(screen.getByRole("textbox", { name: /^Key/ }), { target: { value: "a b" } });
  fireEvent.click(screen.getByRole("button", { name: "Find" }));
  expect(await screen.findByText("No message matches.")).toBeTruthy();
  expect(address()).toBe("/messages?by=key&topic=orders&value=a+b");
});

test("what the gateway lacks and what the role may not do is absent", async () => {
  stubGateway({ "GET /v1/messages/{id}": { json: message("1") } });
  const at = "/messages?message=S1";
  await renderView(<MessagesPage />, { path: "/messages", at, operations: [], role: "viewer" });
  expect(await screen.findByText("Message id")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Send again" })).toBeNull();
  expect(screen.queryByRole("region", { name: "Life of the message" })).toBeNull();
  expect(screen.queryByRole("option", { name: "Live" })).toBeNull();
});

test.each([
  ["topic=orders&value=2026-01-01T00:00:00.000Z&tags=eu&sql=a%3D1", /names tags and SQL/],
  ["by=live&topic=orders&tags=eu&sql=a%3D1", /names tags and SQL/],
  ["by=bogus&topic=orders&value=x", /There is no way “bogus” to find messages/],
])("an address that can't be meant as it is refuses by name, and asks for nothing: %s", async (query, reason) => {
  const sent = stubGateway({ [SEARCH]: page([message("1")]) });
  await renderView(<MessagesPage />, { path: "/messages", at: `/messages?${query}`, operations: OPERATIONS });
  expect((await screen.findByRole("alert")).textContent).toMatch(reason);
  expect(sent).toEqual([]);
  expect(screen.queryByRole("table")).toBeNull();
});

test("an address says which of its filters a search does not use", async () => {
  const sent = stubGateway({ [SEARCH]: page([message("1")]) });
  const at = "/messages?by=key&topic=orders&value=key-1&tags=eu";
  await renderView(<MessagesPage />, { path: "/messages", at, operations: OPERATIONS });
  expect((await screen.findByRole("alert")).textContent).toBe("Not used here: Tags.");
  expect(sent[0]?.query).toEqual({ key: "key-1", limit: "100" });
});
