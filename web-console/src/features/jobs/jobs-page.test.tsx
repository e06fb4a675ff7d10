// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { JobsPage } from "./jobs-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = ["GET /v1/jobs", "POST /v1/jobs/{job}:cancel"];

const job = (name: string, change: object = {}) => ({
  job: name,
  kind: "redrive",
  arguments: { group: "billing", to: "origin" },
  state: "running",
  cancel_requested: false,
  done: 30,
  failed: 2,
  total: 64,
  error: null,
  created_by: "ada",
  created_at: "2026-01-01T00:00:00.000Z",
  started_at: "2026-01-01T00:00:01.000Z",
  ended_at: null,
  ...change,
});

test("it shows progress, and an unknown total as unknown", async () => {
  stubGateway({ "GET /v1/jobs": { json: { items: [job("a"), job("b", { total: null })], next_cursor: null } } });
  await renderView(<JobsPage />, { operations: OPERATIONS });
  const rows = within(await screen.findByRole("table", { name: "Jobs" })).getAllByRole("row");
  expect(rows[1]?.textContent).toContain("30 of 64");
  expect(rows[2]?.textContent).toContain("30 of an unknown number");
});

test("a job is cancelled after a question that says what stays", async () => {
  const sent = stubGateway({
    "GET /v1/jobs": { json: { items: [job("a")], next_cursor: null } },
    "POST /v1/jobs/{job}:cancel": { status: 202, json: job("a", { cancel_requested: true }) },
  });
  const view = await renderView(<JobsPage />, { at: "/?job=a", path: "/", operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "Cancel job" }));
  expect(await screen.findByText(/30 items are done, and they stay done/)).toBeTruthy();
  const dialog = screen.getByRole("dialog", { name: "Cancel job a?" });
  fireEvent.click(within(dialog).getByRole("button", { name: "Cancel job" }));
  await vi.waitFor(() => {
    expect(sent.filter((call) => call.method === "POST").map((call) => call.path)).toEqual(["/v1/jobs/a:cancel"]);
  });
  expect(view.address()).toBe("/?job=a");
});

test("an ended job and a viewer have no way to cancel", async () => {
  stubGateway({ "GET /v1/jobs": { json: { items: [job("a")], next_cursor: null } } });
  await renderView(<JobsPage />, { at: "/?job=a", path: "/", operations: OPERATIONS, role: "viewer" });
  expect(await screen.findByText("Arguments")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Cancel job" })).toBeNull();
});

test("the filter is part of the address and of the request", async () => {
  const sent = stubGateway({ "GET /v1/jobs": { json: { items: [], next_cursor: null } } });
  await renderView(<JobsPage />, { at: "/?state=failed", path: "/", operations: OPERATIONS });
  expect(await screen.findByText("No job matches these filters.")).toBeTruthy();
  expect(sent[0]?.query).toEqual({ state: "failed", limit: "100" });
});

test("older jobs come page by page", async () => {
  stubGateway({
    "GET /v1/jobs": (call) => ({
      json:
        call.query["cursor"] === "2"
          ? { items: [job("b")], next_cursor: null }
          : { items: [job("a")], next_cursor: "2" },
    }),
  });
  await renderView(<JobsPage />, { operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "Show older jobs" }));
  expect(await screen.findByRole("button", { name: "b" })).toBeTruthy();
});

test("a refusal is shown with its reason", async () => {
  stubGateway({ "GET /v1/jobs": refused("forbidden", 403) });
  await renderView(<JobsPage />, { operations: OPERATIONS });
  expect(await screen.findByText(/forbidden: refused/)).toBeTruthy();
});
