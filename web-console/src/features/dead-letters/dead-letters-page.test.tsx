// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { DeadLettersPage } from "./dead-letters-page";

afterEach(() => vi.unstubAllGlobals());

const LETTERS = "GET /v1/groups/{group}/dead-letters";
const REDRIVE = "POST /v1/groups/{group}/dead-letters:redrive";
const OPERATIONS = [LETTERS, `${LETTERS}:export`, REDRIVE, "GET /v1/jobs/{job}"];
const AT = { at: "/?group=billing", path: "/" };

const letter = (id: string, change: object = {}) => ({
  message_id: `M${id}`,
  stored_id: `S${id}`,
  topic: "%DLQ%billing",
  broker: "broker-a",
  queue_id: 0,
  queue_offset: id,
  body: `{"order": ${id}}`,
  encoding: "text",
  keys: [`order-${id}`],
  tag: "eu",
  properties: { region: "north" },
  reconsume_times: 16,
  dead_at: "2026-01-01T00:00:00.000Z",
  origin: { topic: "orders", message_id: "F1" },
  attempts: 17,
  redriven_at: null,
  ...change,
});

const job = (change: object = {}) => ({
  job: "11111111-1111-1111-1111-111111111111",
  kind: "redrive",
  arguments: {},
  state: "queued",
  cancel_requested: false,
  done: 0,
  failed: 0,
  total: null,
  error: null,
  created_by: "user:ada",
  created_at: "2026-01-01T00:00:00.000Z",
  started_at: null,
  ended_at: null,
  ...change,
});

test("without a group nothing is asked, and a group shows its letters", async () => {
  const sent = stubGateway({ [LETTERS]: { json: { items: [letter("1")], next_cursor: null } } });
  const view = await renderView(<DeadLettersPage />, { operations: OPERATIONS });
  expect(screen.getByText("Enter the name of a group to see its dead letters.")).toBeTruthy();
  expect(sent).toEqual([]);
  await userEvent.type(screen.getByLabelText("Group"), "billing");
  const table = await screen.findByRole("table", { name: "Dead letters" });
  expect(within(table).getAllByRole("row")[1]?.textContent).toMatch(/M1.*orders.*order-1.*eu.*17.*no/);
  expect(sent.map((call) => call.path)).toEqual(["/v1/groups/billing/dead-letters"]);
  expect(view.address()).toBe("/?group=billing");
});

test("a letter opens with its body, its properties and the message that failed", async () => {
  stubGateway({ [LETTERS]: { json: { items: [letter("1")], next_cursor: null } } });
  await renderView(<DeadLettersPage />, { ...AT, operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "M1" }));
  const drawer = await screen.findByRole("dialog");
  expect(within(drawer).getByText("F1")).toBeTruthy();
  expect(within(drawer).getByRole("table", { name: "Properties" }).textContent).toBe("regionnorth");
});

test("a redrive is previewed, started and followed to its end", async () => {
  let polls = 0;
  const sent = stubGateway({
    [LETTERS]: { json: { items: [letter("1")], next_cursor: null } },
    [REDRIVE]: (call) =>
      (call.body as { dry_run: boolean }).dry_run
        ? { json: { selected: 1, sample: [letter("1")] } }
        : { status: 202, json: job() },
    "GET /v1/jobs/{job}": () => ({
      json: job({ state: (polls += 1) > 1 ? "done" : "running", done: 1, total: 1, failed: 0 }),
    }),
  });
  const view = await renderView(<DeadLettersPage />, {
    at: "/?group=billing&topic=orders",
    path: "/",
    operations: OPERATIONS,
  });
  fireEvent.click(await screen.findByRole("button", { name: "Send these again" }));
  const dialog = await screen.findByRole("dialog", { name: "Send dead letters of billing again" });
  expect(within(dialog).queryByRole("button", { name: "Send again" })).toBeNull();
  await userEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  expect(await within(dialog).findByText("1 letter will be sent")).toBeTruthy();
  await userEvent.click(within(dialog).getByRole("button", { name: "Send again" }));
  expect(await screen.findByText("The redrive has ended", undefined, { timeout: 4_000 })).toBeTruthy();
  const bodies = sent.filter((call) => call.method === "POST").map((call) => call.body);
  const body = { filter: { topic: "orders" }, to: "retry", rate_per_s: 100 };
  expect(bodies).toEqual([
    { ...body, dry_run: true },
    { ...body, dry_run: false },
  ]);
  expect(view.address()).toContain(`job=${job().job}`);
});

test("without metadata nobody knows what was sent again", async () => {
  stubGateway({ [LETTERS]: { json: { items: [letter("1")], next_cursor: null, metadata: "unavailable" } } });
  await renderView(<DeadLettersPage />, { ...AT, operations: OPERATIONS });
  const table = await screen.findByRole("table", { name: "Dead letters" });
  expect(within(table).getAllByRole("row")[1]?.textContent).toContain("unknown");
});

test("an empty page that has a next one is not taken for the end", async () => {
  stubGateway({
    [LETTERS]: (call) => ({
      json:
        call.query["cursor"] === "2" ? { items: [letter("9")], next_cursor: null } : { items: [], next_cursor: "2" },
    }),
  });
  await renderView(<DeadLettersPage />, { ...AT, operations: OPERATIONS });
  expect(await screen.findByText("The newest letters do not match. Older ones may.")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Show older letters" }));
  expect(await screen.findByRole("button", { name: "M9" })).toBeTruthy();
});

test("a group without dead letters has nothing to send again", async () => {
  stubGateway({ [LETTERS]: { json: { items: [], next_cursor: null } } });
  await renderView(<DeadLettersPage />, { ...AT, operations: OPERATIONS });
  expect(await screen.findByText("This group has no dead letters.")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Send all again" })).toBeNull();
});

test("a viewer may not send letters again, and a refusal is shown", async () => {
  stubGateway({ [LETTERS]: refused("forbidden", 403) });
  await renderView(<DeadLettersPage />, { ...AT, role: "viewer", operations: OPERATIONS });
  expect(await screen.findByRole("alert")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Send all again" })).toBeNull();
  expect(screen.getByRole("link", { name: "Export" }).getAttribute("href")).toBe(
    "/v1/groups/billing/dead-letters:export",
  );
});
