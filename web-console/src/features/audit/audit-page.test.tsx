// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { AuditPage } from "./audit-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = ["GET /v1/audit", "GET /v1/audit:export"];

const entry = (id: string, change: object = {}) => ({
  id,
  at: "2026-01-01T00:00:00.000Z",
  actor: "user:ada",
  action: "topic.change",
  kind: "topic",
  name: "orders",
  before: { perm: "rw", read_queues: 4 },
  after: { perm: "r", read_queues: 4 },
  request_id: "r-1",
  ...change,
});

test("a change opens with its difference, without the fields that stayed", async () => {
  stubGateway({ "GET /v1/audit": { json: { items: [entry("9223372036854775807")], next_cursor: null } } });
  const view = await renderView(<AuditPage />, { operations: OPERATIONS });
  const table = await screen.findByRole("table", { name: "Audit" });
  expect(within(table).getAllByRole("row")[1]?.textContent).toMatch(/topic\.change.*orders.*user:ada.*perm/);
  fireEvent.click(within(table).getByRole("button", { name: "topic.change" }));
  const rows = within(await screen.findByRole("table", { name: "Difference" })).getAllByRole("row");
  expect(rows.map((row) => row.textContent)).toEqual(["FieldBeforeAfter", 'perm"rw""r"']);
  expect(view.address()).toBe("/?entry=9223372036854775807");
});

test("filters are part of the address, of the request, and of the export", async () => {
  const sent = stubGateway({ "GET /v1/audit": { json: { items: [], next_cursor: null } } });
  const at = "/?kind=topic&name=orders&actor=user%3Aada&from=2026-01-31T08%3A30";
  await renderView(<AuditPage />, { at, path: "/", operations: OPERATIONS });
  expect(await screen.findByText("No change matches these filters.")).toBeTruthy();
  const wanted = {
    kind: "topic",
    name: "orders",
    actor: "user:ada",
    from: new Date("2026-01-31T08:30").toISOString(),
  };
  expect(sent[0]?.query).toEqual({ ...wanted, limit: "100" });
  const link = screen.getByRole("link", { name: "Export" });
  const target = new URL(link.getAttribute("href") ?? "", "http://gateway");
  expect([target.pathname, Object.fromEntries(target.searchParams)]).toEqual(["/v1/audit:export", wanted]);
});

test("the name of any kind is not asked for, and clearing the kind clears the name", async () => {
  stubGateway({ "GET /v1/audit": { json: { items: [], next_cursor: null } } });
  const view = await renderView(<AuditPage />, { at: "/?kind=topic&name=orders", path: "/", operations: OPERATIONS });
  expect(await screen.findByLabelText("Name")).toBeTruthy();
  fireEvent.change(screen.getByLabelText("Kind"), { target: { value: "" } });
  await vi.waitFor(() => {
    expect(screen.queryByLabelText("Name")).toBeNull();
  });
  expect(view.address()).toBe("/");
});

test("typing sends one request when it pauses", async () => {
  const sent = stubGateway({ "GET /v1/audit": { json: { items: [], next_cursor: null } } });
  await renderView(<AuditPage />, { operations: OPERATIONS });
  const field = await screen.findByLabelText("Action");
  for (const value of ["t", "to", "topic.create"]) fireEvent.change(field, { target: { value } });
  await vi.waitFor(() => {
    expect(sent.map((call) => call.query["action"])).toEqual([undefined, "topic.create"]);
  });
});

test("older changes come page by page", async () => {
  stubGateway({
    "GET /v1/audit": (call) => ({
      json:
        call.query["cursor"] === "2"
          ? { items: [entry("1", { name: "second" })], next_cursor: null }
          : { items: [entry("2")], next_cursor: "2" },
    }),
  });
  await renderView(<AuditPage />, { operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "Show older changes" }));
  expect(await screen.findByText("second")).toBeTruthy();
});

test("who is no admin hears who may read it, without filters and without a request", async () => {
  const sent = stubGateway({ "GET /v1/audit": refused("forbidden", 403) });
  await renderView(<AuditPage />, { role: "operator", operations: ["GET /v1/audit"] });
  expect((await screen.findByRole("alert")).textContent).toContain("This needs the role Admin. Yours is Operator.");
  expect(screen.queryByLabelText("Kind")).toBeNull();
  expect(sent).toEqual([]);
});

test("a refusal is shown, and a gateway without an export offers none", async () => {
  stubGateway({ "GET /v1/audit": refused("forbidden", 403) });
  await renderView(<AuditPage />, { operations: ["GET /v1/audit"] });
  expect(await screen.findByText(/forbidden: refused/)).toBeTruthy();
  expect(screen.queryByRole("link", { name: "Export" })).toBeNull();
});
