// @vitest-environment jsdom
import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { TopicPage } from "./topic-page";
import { TopicsPage } from "./topics-page";

afterEach(() => vi.unstubAllGlobals());

const topic = (name: string, more: object = {}) => ({
  topic: name,
  read_queues: 4,
  write_queues: 4,
  perm: "rw",
  order: false,
  brokers: null,
  duplicate_window_ms: 0,
  state: "applied",
  pending: [],
  origin: "api",
  observed: [{ broker: "broker-a", read_queues: 4, write_queues: 4, perm: "rw", order: false, duplicate_window_ms: 0 }],
  metadata: "available",
  created_at: null,
  updated_at: null,
  ...more,
});

const LIST = ["GET /v1/topics", "PUT /v1/topics/{topic}"];
const DETAIL = [
  "GET /v1/topics/{topic}/queues",
  "PUT /v1/topics/{topic}",
  "DELETE /v1/topics/{topic}",
  "POST /v1/topics/{topic}/messages",
];
const PATH = { path: "/topics/$topic", at: "/topics/orders" };

const page = (items: object[], next_cursor: string | null = null) => ({
  json: { items, next_cursor, metadata: "available" },
});
const queue = (id: number, min: string | null, max: string | null) => ({
  broker: "broker-a",
  queue_id: id,
  min_offset: min,
  max_offset: max,
  read: max === null ? null : true,
  write: true,
  last_stored_at: null,
});

test("topics of all pages are listed and searched, and the search is in the address", async () => {
  const sent = stubGateway({
    "GET /v1/topics": (call) =>
      call.query.cursor === "c2" ? page([topic("orders")]) : page([topic("audit"), topic("billing")], "c2"),
  });
  const { address } = await renderView(<TopicsPage />, { path: "/topics", operations: LIST });
  expect(await screen.findByText("3 topics")).toBeTruthy();
  await userEvent.type(screen.getByRole("textbox", { name: "Search topics" }), "ord");
  expect(await screen.findByText("1 of 3 topics")).toBeTruthy();
  const names = within(screen.getByRole("table", { name: "Topics" })).getAllByRole("link");
  expect(names.map((link) => link.textContent)).toEqual(["orders"]);
  await waitFor(() => {
    expect(address()).toBe("/topics?q=ord");
  });
  expect(sent.map((call) => call.query.cursor)).toEqual([undefined, "c2"]);
});

test("the window of duplicates of a topic is named", async () => {
  stubGateway({ "GET /v1/topics": page([topic("orders", { duplicate_window_ms: 600_000 })]) });
  await renderView(<TopicsPage />, { path: "/topics", operations: LIST });
  expect(await screen.findByText("window 10 min")).toBeTruthy();
});

test("a topic is created with its settings and opened; one that exists is refused", async () => {
  const taken = { ...refused("version-conflict", 412, "topic: orders exists") };
  const sent = stubGateway({
    "GET /v1/topics": page([]),
    "PUT /v1/topics/{topic}": (call) => (call.path.endsWith("orders") ? taken : { status: 201, json: topic("new") }),
  });
  const { address } = await renderView(<TopicsPage />, { path: "/topics", operations: LIST });
  expect(await screen.findByText("There is no topic yet.")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Create" }));
  const dialog = await screen.findByRole("dialog", { name: "Create a topic" });
  const name = within(dialog).getByRole("textbox", { name: /^Topic/ });
  await userEvent.type(name, "orders");
  await userEvent.click(within(dialog).getByRole("button", { name: "Create" }));
  expect((await within(dialog).findByRole("alert")).textContent).toContain("topic: orders exists");
  await userEvent.clear(name);
  await userEvent.type(name, "a b");
  await userEvent.click(within(dialog).getByRole("button", { name: "Create" }));
  await waitFor(() => {
    expect(address()).toBe("/topics/a%20b");
  });
  const put = sent.filter((call) => call.method === "PUT").at(-1);
  expect(put?.path).toBe("/v1/topics/a%20b");
  expect(put?.headers.get("if-none-match")).toBe("*");
  expect(put?.body).toEqual({
    read_queues: 4,
    write_queues: 4,
    perm: "rw",
    order: false,
    duplicate_window: null,
    brokers: null,
  });
});

test("a viewer can't create, and a list that is refused says so", async () => {
  stubGateway({ "GET /v1/topics": refused("forbidden", 403) });
  await renderView(<TopicsPage />, { path: "/topics", operations: LIST, role: "viewer" });
  expect(await screen.findByText("Your role may not do this")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Create" })).toBeNull();
});

test("queues keep 64 bits, and those of a broker that does not answer are unknown", async () => {
  stubGateway({
    "GET /v1/topics/{topic}": { json: topic("orders"), headers: { etag: '"1"' } },
    "GET /v1/topics/{topic}/queues": {
      json: {
        items: [queue(0, "9007199254740993", "9007199254740995"), queue(1, null, null), queue(2, "0", "0")],
        next_cursor: null,
      },
    },
  });
  await renderView(<TopicPage />, { ...PATH, operations: DETAIL });
  const table = await screen.findByRole("table", { name: "Queues" });
  expect(
    within(table)
      .getAllByRole("row")
      .slice(1)
      .map((row) => row.textContent),
  ).toEqual([
    "broker-a / 09,007,199,254,740,9939,007,199,254,740,9952yesyesunknown",
    "broker-a / 1unknownunknownunknownunknownyesunknown",
    "broker-a / 2000yesyesnone yet",
  ]);
});

const PRODUCERS = { ...PATH, at: "/topics/orders?tab=producers", operations: ["GET /v1/topics/{topic}/producers"] };

const producer = (group: string, more: object = {}) => ({
  group,
  client_id: `10.0.0.1@${group}`,
  kind: "client",
  address: "10.0.0.1:41000",
  language: "JAVA",
  version: "V5_3_3",
  brokers: ["broker-a"],
  last_sent_at: "2020-01-01T00:00:00.000Z",
  ...more,
});

const producers = (items: object[], more: object = {}) => ({
  "GET /v1/topics/{topic}": { json: topic("orders"), headers: { etag: '"1"' } },
  "GET /v1/topics/{topic}/producers": { json: { items, missing: [], truncated: false, ...more } },
});

test("producers are listed and sorted, a gateway is named as one, and an id that brokers do not know is unknown", async () => {
  stubGateway(
    producers([
      producer("GANTRY_GATEWAY", { kind: "gateway", language: "PYTHON", brokers: ["broker-a", "broker-b"] }),
      producer("billing", { client_id: null, last_sent_at: "2020-01-02T00:00:00.000Z" }),
    ]),
  );
  await renderView(<TopicPage />, PRODUCERS);
  const table = await screen.findByRole("table", { name: "Producers" });
  const rows = () =>
    within(table)
      .getAllByRole("row")
      .slice(1)
      .map((row) => row.textContent);
  expect(rows()[0]).toMatch(
    /^GANTRY_GATEWAYGateway10\.0\.0\.1@GANTRY_GATEWAY10\.0\.0\.1:41000PYTHON V5_3_3broker-a, broker-b.* ago$/u,
  );
  expect(screen.getByText(/A gateway sends for HTTP clients/)).toBeTruthy();
  expect(rows()[1]).toMatch(/^billingunknown10\.0\.0\.1:41000JAVA V5_3_3broker-a.* ago$/u);
  await userEvent.click(within(table).getByRole("button", { name: "Last message" }));
  const first = rows()[0];
  await userEvent.click(within(table).getByRole("button", { name: "Last message" }));
  expect(rows()[1]).toBe(first);
});

test("no producer, a broker that does not answer, and a list that is too long are different states", async () => {
  stubGateway(producers([]));
  const { unmount } = await renderView(<TopicPage />, PRODUCERS);
  expect(await screen.findByText("No connected client has sent to this topic.")).toBeTruthy();
  unmount();
  stubGateway(producers([], { missing: ["broker b: away"] }));
  const second = await renderView(<TopicPage />, PRODUCERS);
  expect((await screen.findByRole("status", { name: /Not all brokers answered/ })).textContent).toContain(
    "broker b: away",
  );
  expect(screen.getByText("The producers are unknown.")).toBeTruthy();
  second.unmount();
  stubGateway(producers([producer("billing")], { missing: ["broker b: away"], truncated: true }));
  await renderView(<TopicPage />, PRODUCERS);
  expect(await screen.findByText(/There may be more producers/)).toBeTruthy();
  expect(screen.getByText("broker b: away")).toBeTruthy();
  expect(screen.getByRole("table", { name: "Producers" })).toBeTruthy();
});

test("producers that can't be read show the error, and without the operation there is no such tab", async () => {
  stubGateway({ ...producers([]), "GET /v1/topics/{topic}/producers": refused("broker-unavailable", 503) });
  const { unmount } = await renderView(<TopicPage />, PRODUCERS);
  expect(await screen.findByRole("alert")).toBeTruthy();
  expect(screen.queryByText("No connected client has sent to this topic.")).toBeNull();
  unmount();
  stubGateway(producers([]));
  await renderView(<TopicPage />, { ...PRODUCERS, operations: DETAIL });
  expect(await screen.findByRole("tab", { name: "Queues" })).toBeTruthy();
  expect(screen.queryByRole("tab", { name: "Producers" })).toBeNull();
});

async function openSettings(role: "operator" | "viewer" = "operator") {
  await renderView(<TopicPage />, { ...PATH, at: "/topics/orders?tab=settings", operations: DETAIL, role });
  return screen.findByRole<HTMLInputElement>("textbox", { name: "Queues to read" });
}

test("a change shows its difference, asks, and is sent with the version that was read", async () => {
  const sent = stubGateway({
    "GET /v1/topics/{topic}": { json: topic("orders"), headers: { etag: '"7"' } },
    "PUT /v1/topics/{topic}": { json: topic("orders", { read_queues: 8 }), headers: { etag: '"8"' } },
  });
  const field = await openSettings();
  const save = () => screen.getByRole<HTMLButtonElement>("button", { name: "Save" });
  expect(save().disabled).toBe(true);
  await userEvent.clear(field);
  await userEvent.type(field, "8");
  const diff = screen.getByRole("table", { name: "What will change" });
  expect(
    within(diff)
      .getAllByRole("row")
      .slice(1)
      .map((row) => row.textContent),
  ).toEqual(["Queues to read48"]);
  await userEvent.click(save());
  const dialog = await screen.findByRole("dialog", { name: "Change orders" });
  expect(within(dialog).getByText("Queues to read: 4 → 8")).toBeTruthy();
  await userEvent.click(within(dialog).getByRole("button", { name: "Save" }));
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  const put = sent.find((call) => call.method === "PUT");
  expect(put?.headers.get("if-match")).toBe('"7"');
  expect(put?.body).toEqual({ read_queues: 8 });
});

test("the second of two people sees what the first changed, and can save on top of it", async () => {
  let version = 1;
  const sent = stubGateway({
    "GET /v1/topics/{topic}": () => ({
      json: topic("orders", version === 1 ? {} : { perm: "r" }),
      headers: { etag: `"${version}"` },
    }),
    "PUT /v1/topics/{topic}": (call) => {
      if (call.headers.get("if-match") === '"2"')
        return { json: topic("orders", { perm: "r", order: true }), headers: { etag: '"3"' } };
      version = 2;
      return refused("version-conflict", 412);
    },
  });
  await openSettings();
  await userEvent.click(screen.getByRole("checkbox", { name: "Ordered" }));
  const save = async () => {
    await userEvent.click(screen.getByRole("button", { name: "Save" }));
    const dialog = await screen.findByRole("dialog", { name: "Change orders" });
    await userEvent.click(within(dialog).getByRole("button", { name: "Save" }));
  };
  await save();
  const alert = await screen.findByRole("alert", { name: /Another person/ });
  expect(within(alert).getAllByRole("row").at(1)?.textContent).toBe("Permissionrwrrw");
  expect(screen.getByRole<HTMLInputElement>("checkbox", { name: "Ordered" }).checked).toBe(true);
  expect(screen.getByRole<HTMLSelectElement>("combobox", { name: "Permission" }).value).toBe("r");
  await save();
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "PUT").map((call) => call.body)).toEqual([
    { order: true },
    { order: true },
  ]);
});

test("a change that hides messages needs one more decision", async () => {
  const sent = stubGateway({
    "GET /v1/topics/{topic}": { json: topic("orders"), headers: { etag: '"1"' } },
    "PUT /v1/topics/{topic}": (call) =>
      (call.body as { allow_hiding?: boolean }).allow_hiding
        ? { json: topic("orders", { perm: "w" }) }
        : refused("hides-messages", 409),
  });
  await openSettings();
  await userEvent.selectOptions(screen.getByRole("combobox", { name: "Permission" }), "w");
  const save = async () => {
    await userEvent.click(screen.getByRole("button", { name: "Save" }));
    const dialog = await screen.findByRole("dialog", { name: "Change orders" });
    await userEvent.click(within(dialog).getByRole("button", { name: "Save" }));
  };
  await save();
  await userEvent.click(await screen.findByRole("checkbox", { name: /can't be read any more/ }));
  await save();
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "PUT").map((call) => call.body)).toEqual([
    { perm: "w" },
    { perm: "w", allow_hiding: true },
  ]);
});

test("a viewer reads settings and changes nothing", async () => {
  stubGateway({ "GET /v1/topics/{topic}": { json: topic("orders"), headers: { etag: '"1"' } } });
  expect((await openSettings("viewer")).matches(":disabled")).toBe(true);
  for (const name of ["Save", "Delete", "Send a message"]) expect(screen.queryByRole("button", { name })).toBeNull();
});

test.each([
  [
    { status: 201, json: { outcome: "stored", message_id: "M1", broker: "broker-a", queue_id: 2, queue_offset: "17" } },
    "The message is stored.",
  ],
  [refused("broker-timeout", 504), "It is unknown whether the message is stored."],
])("a test message says what became of it: %#", async (answer, outcome) => {
  const sent = stubGateway({
    "GET /v1/topics/{topic}": { json: topic("orders") },
    "GET /v1/topics/{topic}/queues": { json: { items: [], next_cursor: null } },
    "POST /v1/topics/{topic}/messages": answer,
  });
  await renderView(<TopicPage />, { ...PATH, operations: DETAIL });
  await userEvent.click(await screen.findByRole("button", { name: "Send a message" }));
  const dialog = await screen.findByRole("dialog", { name: "Send a test message to orders" });
  await userEvent.type(within(dialog).getByRole("textbox", { name: /^Body/ }), "hello");
  await userEvent.type(within(dialog).getByRole("textbox", { name: /^Keys/ }), "a, b");
  await userEvent.click(within(dialog).getByRole("button", { name: "Send" }));
  expect(await within(dialog).findByText(outcome)).toBeTruthy();
  expect(sent.find((call) => call.method === "POST")?.body).toEqual({ body: "hello", keys: ["a", "b"] });
});

test("a topic is deleted only after its name is typed", async () => {
  const sent = stubGateway({
    "GET /v1/topics/{topic}": { json: topic("orders") },
    "GET /v1/topics/{topic}/queues": { json: { items: [], next_cursor: null } },
    "DELETE /v1/topics/{topic}": { status: 204 },
  });
  const { address } = await renderView(<TopicPage />, { ...PATH, operations: DETAIL });
  await userEvent.click(await screen.findByRole("button", { name: "Delete" }));
  const dialog = await screen.findByRole("dialog", { name: "Delete orders" });
  await userEvent.type(within(dialog).getByRole("textbox"), "orders");
  await userEvent.click(within(dialog).getByRole("button", { name: "Delete" }));
  await waitFor(() => {
    expect(address()).toBe("/topics");
  });
  expect(sent.filter((call) => call.method === "DELETE").map((call) => call.path)).toEqual(["/v1/topics/orders"]);
});
