// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway, type FakeAnswer } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { ScheduledPage } from "./scheduled-page";

afterEach(() => vi.unstubAllGlobals());

const LIST = "GET /v1/topics/{topic}/scheduled";
const RECALL = "POST /v1/topics/{topic}/scheduled/{handle}:recall";
const RESCHEDULE = "POST /v1/topics/{topic}/scheduled/{handle}:reschedule";
const OPERATIONS = [LIST, RECALL, RESCHEDULE];
const AT = { at: "/?topic=orders", path: "/" };
const OPEN = { at: "/?topic=orders&message=h1", path: "/" };
const HOUR_MS = 3_600_000;

const waiting = (number: string, change: object = {}) => ({
  message_id: `M${number}`,
  stored_id: `S${number}`,
  topic: "orders",
  broker: "broker-a",
  queue_id: 0,
  queue_offset: "9223372036854775807",
  body: `{"order": ${number}}`,
  encoding: "text",
  keys: [`order-${number}`],
  tag: "eu",
  properties: { region: "north" },
  born_at: "2026-01-01T00:00:00.000Z",
  stored_at: "2026-01-01T00:00:01.000Z",
  born_host: "10.0.0.1:4000",
  reconsume_times: 0,
  size: 300,
  handle: `h${number}`,
  deliver_at: new Date(Date.now() + Number(number) * HOUR_MS + 30_000).toISOString(),
  ...change,
});

const listOf = (...items: object[]): FakeAnswer => ({ json: { items, next_cursor: null } });
const drawer = () => screen.findByRole("dialog", { name: "Scheduled message" });

test("without a topic nothing is asked, and a topic shows what waits", async () => {
  const sent = stubGateway({ [LIST]: listOf(waiting("1"), waiting("2")) });
  const view = await renderView(<ScheduledPage />, { operations: OPERATIONS });
  expect(screen.getByText("Enter the name of a topic to see what waits there.")).toBeTruthy();
  expect(sent).toEqual([]);
  await userEvent.type(screen.getByLabelText("Topic"), "orders");
  const rows = within(await screen.findByRole("table", { name: "Scheduled" })).getAllByRole("row");
  expect(rows[1]?.textContent).toMatch(/M1in 1 h.*ago.*order-1eu/);
  expect(rows[2]?.textContent).toMatch(/M2in 2 h/);
  expect(sent.map((call) => call.path)).toEqual(["/v1/topics/orders/scheduled"]);
  expect(view.address()).toBe("/?topic=orders");
});

test("filters are part of the address and of the request", async () => {
  const sent = stubGateway({ [LIST]: listOf() });
  const view = await renderView(<ScheduledPage />, { at: "/?topic=orders&from=2026-01-31T08%3A30", path: "/" });
  expect(await screen.findByText("No message is due in this time.")).toBeTruthy();
  expect(sent[0]?.query).toEqual({ from: new Date("2026-01-31T08:30").toISOString(), limit: "50" });
  await userEvent.click(screen.getByRole("button", { name: "Clear filters" }));
  expect(await screen.findByText("No message of this topic waits.")).toBeTruthy();
  expect(view.address()).toBe("/?topic=orders");
});

test("a message opens with its times, its body and its properties", async () => {
  stubGateway({ [LIST]: listOf(waiting("1")) });
  await renderView(<ScheduledPage />, { ...AT, operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "M1" }));
  const found = await drawer();
  expect(within(found).getByText("Due").parentElement?.textContent).toMatch(/\d{4}.* in 1 h/);
  expect(within(found).getByLabelText("Body", { selector: "pre" }).textContent).toContain('"order": 1');
  expect(within(found).getByRole("table", { name: "Properties" }).textContent).toBe("regionnorth");
});

test("a recall says what will happen, and the message leaves the list before the broker drops it", async () => {
  const sent = stubGateway({
    [LIST]: listOf(waiting("1"), waiting("2")),
    [RECALL]: { json: { outcome: "recalled" } },
  });
  const view = await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  await userEvent.click(within(await drawer()).getByRole("button", { name: "Recall" }));
  const question = await screen.findByRole("dialog", { name: "Recall this message?" });
  expect(question.textContent).toMatch(/Message M1 of topic orders, due .* will not be delivered/);
  await userEvent.click(within(question).getByRole("button", { name: "Recall" }));
  expect(await screen.findByText("It will not be delivered.", { exact: false })).toBeTruthy();
  expect(sent.filter((call) => call.method === "POST").map((call) => call.path)).toEqual([
    "/v1/topics/orders/scheduled/h1:recall",
  ]);
  expect(screen.queryByRole("button", { name: "M1" })).toBeNull();
  expect(screen.getByRole("button", { name: "M2" })).toBeTruthy();
  expect(view.address()).toBe("/?topic=orders");
});

test("a recall that comes too late says so", async () => {
  stubGateway({ [LIST]: listOf(waiting("1")), [RECALL]: { json: { outcome: "gone" } } });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  await userEvent.click(within(await drawer()).getByRole("button", { name: "Recall" }));
  const question = await screen.findByRole("dialog", { name: "Recall this message?" });
  await userEvent.click(within(question).getByRole("button", { name: "Recall" }));
  expect(await screen.findByText("Too late")).toBeTruthy();
  expect(screen.getByText(/or its topic was deleted\. Nothing was changed\.$/)).toBeTruthy();
});

test("in Chinese, too, what comes too late may be for a deleted topic", async () => {
  stubGateway({ [LIST]: listOf(waiting("1")), [RESCHEDULE]: refused("unknown-message", 404) });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS, language: "zh" });
  await userEvent.click(await screen.findByRole("button", { name: "改期" }));
  const dialog = within(await screen.findByRole("dialog", { name: "消息改期" }));
  await userEvent.click(dialog.getByRole("button", { name: "改期" }));
  expect(await screen.findByText("太晚了")).toBeTruthy();
  expect(screen.getByText(/或者其主题已被删除/)).toBeTruthy();
});

test("a recall with an unknown outcome is no success, and the message stays", async () => {
  stubGateway({ [LIST]: listOf(waiting("1")), [RECALL]: refused("outcome-unknown", 504) });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  await userEvent.click(within(await drawer()).getByRole("button", { name: "Recall" }));
  const question = await screen.findByRole("dialog", { name: "Recall this message?" });
  await userEvent.click(within(question).getByRole("button", { name: "Recall" }));
  expect((await within(await drawer()).findByRole("alert")).textContent).toContain("outcome-unknown");
});

async function openReschedule() {
  await userEvent.click(within(await drawer()).getByRole("button", { name: "Reschedule" }));
  return within(await screen.findByRole("dialog", { name: "Reschedule a message" }));
}

test("a delay is checked, and the message has its new time at once", async () => {
  const later = new Date(Date.now() + 5 * HOUR_MS + 30_000).toISOString();
  const sent = stubGateway({
    [LIST]: listOf(waiting("1"), waiting("2")),
    [RESCHEDULE]: { json: { handle: "h1b", deliver_at: later } },
  });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  const dialog = await openReschedule();
  const field = dialog.getByLabelText("Delay from now");
  const submit = dialog.getByRole("button", { name: "Reschedule" }) as HTMLButtonElement;
  await userEvent.clear(field);
  await userEvent.type(field, "41d");
  expect(dialog.getByText("At most 40 days")).toBeTruthy();
  expect(submit.disabled).toBe(true);
  await userEvent.clear(field);
  await userEvent.type(field, "5h");
  expect(dialog.getByRole("status").textContent).toMatch(/orders gets the message at .*, in 5 h\./);
  await userEvent.click(submit);
  expect(await screen.findByText("Rescheduled")).toBeTruthy();
  const rows = within(await screen.findByRole("table", { name: "Scheduled" })).getAllByRole("row");
  expect(rows.slice(1).map((row) => row.textContent?.slice(0, 6))).toEqual(["M2in 2", "M1in 5"]);
  expect(sent.filter((call) => call.method === "POST").map((call) => [call.path, call.body])).toEqual([
    ["/v1/topics/orders/scheduled/h1:reschedule", { delay: "5h" }],
  ]);
});

test("a time that is past is delivered at once, and the dialog says so before", async () => {
  const sent = stubGateway({
    [LIST]: listOf(waiting("1")),
    [RESCHEDULE]: { json: { handle: null, deliver_at: null } },
  });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  const dialog = await openReschedule();
  await userEvent.click(dialog.getByLabelText("At a time"));
  fireEvent.change(dialog.getByLabelText("Time"), { target: { value: "2020-01-31T08:30:05" } });
  expect(dialog.getByText("This time is not ahead: topic orders gets the message at once.")).toBeTruthy();
  await userEvent.click(dialog.getByRole("button", { name: "Reschedule" }));
  expect(await screen.findByText("Delivered at once")).toBeTruthy();
  expect(sent.find((call) => call.method === "POST")?.body).toEqual({
    deliver_at: new Date("2020-01-31T08:30:05").toISOString(),
  });
  expect(await screen.findByText("No message of this topic waits.")).toBeTruthy();
});

test("rescheduling a message that does not wait any more comes too late; other refusals stay in the dialog", async () => {
  let answer = refused("conflict", 409);
  stubGateway({ [LIST]: listOf(waiting("1")), [RESCHEDULE]: () => answer });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  const dialog = await openReschedule();
  await userEvent.click(dialog.getByRole("button", { name: "Reschedule" }));
  expect((await dialog.findByRole("alert")).textContent).toContain("conflict: refused");
  answer = refused("unknown-message", 404);
  await userEvent.click(dialog.getByRole("button", { name: "Reschedule" }));
  expect(await screen.findByText("Too late")).toBeTruthy();
});

test("later messages come page by page, and an empty page is not taken for the end", async () => {
  stubGateway({
    [LIST]: (call) => (call.query["cursor"] === "2" ? listOf(waiting("9")) : { json: { items: [], next_cursor: "2" } }),
  });
  await renderView(<ScheduledPage />, { ...AT, operations: OPERATIONS });
  expect(await screen.findByText(/Later ones may match/)).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Show later messages" }));
  expect(await screen.findByRole("button", { name: "M9" })).toBeTruthy();
});

test("an address of a message that is not listed says what may have happened", async () => {
  stubGateway({ [LIST]: listOf() });
  await renderView(<ScheduledPage />, { ...OPEN, operations: OPERATIONS });
  expect(within(await drawer()).getByText(/It was delivered, recalled or rescheduled/)).toBeTruthy();
});

test("a viewer reads and changes nothing", async () => {
  stubGateway({ [LIST]: listOf(waiting("1")) });
  await renderView(<ScheduledPage />, { ...OPEN, role: "viewer", operations: OPERATIONS });
  const found = within(await drawer());
  expect(found.getByLabelText("Body", { selector: "pre" })).toBeTruthy();
  expect(found.queryByRole("button", { name: "Recall" })).toBeNull();
  expect(found.queryByRole("button", { name: "Reschedule" })).toBeNull();
});

test("a refusal is shown with its reason", async () => {
  stubGateway({ [LIST]: refused("forbidden", 403) });
  await renderView(<ScheduledPage />, { ...AT, operations: OPERATIONS });
  expect(await screen.findByText(/forbidden: refused/)).toBeTruthy();
});
