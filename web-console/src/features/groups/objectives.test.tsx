// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { Objectives } from "./objectives";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = [
  "GET /v1/objectives",
  "GET /v1/groups/{group}/objective",
  "PUT /v1/groups/{group}/objective",
  "DELETE /v1/groups/{group}/objective",
];
const objective = (topic: string | null, more: object = {}) => ({
  group: "billing",
  topic,
  max_lag_seconds: 90,
  max_lag_messages: null,
  ignore: false,
  ignore_until: null,
  reason: null,
  updated_at: "2026-01-01T00:00:00.000Z",
  ...more,
});
const page = (...items: object[]) => ({ json: { items, next_cursor: null } });
const NOTHING = { json: { items: [], next_cursor: null, metadata: "available" } };
const TOPICS = { "GET /v1/groups/{group}/offsets": NOTHING, "GET /v1/reports/lag_report/rows": NOTHING } as const;
const open = (role: "operator" | "viewer" = "operator") =>
  renderView(<Objectives group="billing" />, { operations: OPERATIONS, role });
const fill = (dialog: HTMLElement, label: string | RegExp, value: string) => {
  fireEvent.change(within(dialog).getByLabelText(label, { selector: "input" }), { target: { value } });
};
const save = (dialog: HTMLElement) => within(dialog).getByRole<HTMLButtonElement>("button", { name: "Save" });

test("limits are shown as they are, and no limit as none", async () => {
  stubGateway({
    "GET /v1/objectives": page(
      objective(null),
      objective("orders", { max_lag_seconds: null, max_lag_messages: 0, ignore: true, reason: "migration" }),
      objective("old", { ignore: true, ignore_until: "2026-01-02T00:00:00.000Z" }),
    ),
  });
  await open("viewer");
  const rows = within(await screen.findByRole("table", { name: "Objectives" }))
    .getAllByRole("row")
    .slice(1);
  expect(rows[0]?.textContent).toContain("all other topics1 min 30 sno limitno–");
  expect(rows[1]?.textContent).toContain("ordersno limit0ignoredmigration");
  expect(rows[2]?.textContent).toMatch(/has ended.* ago/);
  expect(screen.queryByRole("button", { name: "Add objective" })).toBeNull();
});

test("a new objective is created only if there is none, for a topic or for all", async () => {
  const sent = stubGateway({
    ...TOPICS,
    "GET /v1/objectives": page(),
    "PUT /v1/groups/{group}/objective": { status: 201, json: objective("orders"), headers: { etag: '"1"' } },
  });
  await open();
  expect(await screen.findByText("The group has no objective.")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Add objective" }));
  const dialog = await screen.findByRole("dialog", { name: "Add an objective for billing" });
  expect(save(dialog).disabled).toBe(true);
  fill(dialog, "Topic", "orders");
  fill(dialog, "Longest lag", "90");
  fireEvent.click(within(dialog).getByLabelText("Lag is ignored"));
  fill(dialog, "Ignored until", "2030-01-31T08:30");
  fireEvent.click(save(dialog));
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  const put = sent.find((call) => call.method === "PUT");
  expect([put?.path, put?.query, put?.headers.get("if-none-match"), put?.body]).toEqual([
    "/v1/groups/billing/objective",
    { topic: "orders" },
    "*",
    { max_lag_seconds: 90, ignore: true, ignore_until: new Date("2030-01-31T08:30").toISOString() },
  ]);
});

test("a change is for the version that was read, and another person's change is shown", async () => {
  const reads = [objective(null), objective(null, { max_lag_seconds: 30 })];
  const sent = stubGateway({
    ...TOPICS,
    "GET /v1/objectives": page(objective(null)),
    "GET /v1/groups/{group}/objective": () => ({ json: reads.shift(), headers: { etag: `"${5 - reads.length}"` } }),
    "PUT /v1/groups/{group}/objective": (call) =>
      call.headers.get("if-match") === '"5"'
        ? { json: objective(null), headers: { etag: '"6"' } }
        : refused("version-conflict", 412),
  });
  await open();
  fireEvent.click(await screen.findByRole("button", { name: "Change the objective of all other topics" }));
  const dialog = await screen.findByRole("dialog", { name: "Change an objective of billing" });
  await within(dialog).findByDisplayValue("90");
  fill(dialog, "Largest lag", "1000");
  expect(within(dialog).getByRole("table", { name: "What will change" }).textContent).toContain("1000");
  fireEvent.click(save(dialog));
  expect(await within(dialog).findByText("Another person changed these settings", {}, { timeout: 5_000 })).toBeTruthy();
  expect(within(dialog).getByDisplayValue("30")).toBeTruthy();
  fireEvent.click(save(dialog));
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "PUT").at(-1)?.body).toEqual({ max_lag_messages: 1_000 });
});

test("the gateway's reason stands at its field", async () => {
  const problem = refused("invalid-field", 400, "/max_lag_seconds: expected a number").json as object;
  stubGateway({
    ...TOPICS,
    "GET /v1/objectives": page(),
    "PUT /v1/groups/{group}/objective": { status: 400, json: { ...problem, field: "/max_lag_seconds" } },
  });
  await open();
  fireEvent.click(await screen.findByRole("button", { name: "Add objective" }));
  const dialog = await screen.findByRole("dialog", { name: "Add an objective for billing" });
  fill(dialog, "Longest lag", "soon");
  fireEvent.click(save(dialog));
  expect(await within(dialog).findByText("/max_lag_seconds: expected a number")).toBeTruthy();
});

test("an objective is removed after a question that says what counts then", async () => {
  const sent = stubGateway({
    "GET /v1/objectives": page(objective("orders")),
    "DELETE /v1/groups/{group}/objective": { status: 204 },
  });
  await open();
  fireEvent.click(await screen.findByRole("button", { name: "Remove the objective of orders" }));
  const question = await screen.findByRole("dialog", { name: "Remove the objective" });
  expect(within(question).getByText(/The objective of billing on orders is removed/)).toBeTruthy();
  fireEvent.click(within(question).getByRole("button", { name: "Remove" }));
  expect(await screen.findByText("The objective is removed.")).toBeTruthy();
  expect(sent.find((call) => call.method === "DELETE")?.query).toEqual({ topic: "orders" });
});
