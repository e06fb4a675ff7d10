// @vitest-environment jsdom
import { focusManager } from "@tanstack/react-query";
import { act, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway, type FakeAnswer } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { OverviewPage } from "./overview-page";

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
  focusManager.setFocused(undefined);
});

const OPERATIONS = [
  "GET /v1/cluster",
  "GET /v1/reports/lag_report/rows",
  "GET /v1/reports/throughput_rollup/rows",
  "GET /v1/audit",
];

const broker = (name: string, reachable = true) => ({
  cluster: "C",
  broker: name,
  broker_id: 0,
  role: "master",
  address: "127.0.0.1:10911",
  reachable,
  detail: reachable ? null : "timed out",
  version: "V5_3_3",
  store: reachable
    ? {
        disk_ratio: 0.42,
        min_physical_offset: "0",
        max_physical_offset: "1048576",
        dispatch_behind_bytes: 0,
        put_tps: 12.5,
      }
    : null,
});

const cluster = (...brokers: object[]): FakeAnswer => ({
  json: { name_servers: [{ address: "n:9876", reachable: true }], brokers, metadata: "available" },
});

const lagRow = (group: string, verdict: string, lag: number | null) => ({
  level: "topic",
  group,
  topic: "ORDERS",
  verdict,
  lag_messages: lag,
  lag_seconds: lag,
  cause: "no consumer is connected",
});

const lag = (...items: object[]): FakeAnswer => ({
  json: { run: "r", as_of: "2026-01-01T00:00:00Z", items, next_cursor: null },
});

const NOTHING = {
  "GET /v1/reports/throughput_rollup/rows": { json: { items: [] } },
  "GET /v1/audit": { json: { items: [] } },
};

test("it shows which groups are in trouble and why", async () => {
  stubGateway({
    ...NOTHING,
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/reports/lag_report/rows": lag(
      lagRow("fine", "OK", 0),
      lagRow("billing", "STOPPED", 1234),
      lagRow("audit", "LAGGING", null),
    ),
  });
  await renderView(<OverviewPage />, { operations: OPERATIONS });
  const table = await screen.findByRole("table", { name: "Groups in trouble" });
  const rows = within(table).getAllByRole("row").slice(1);
  expect(rows.map((row) => row.textContent)).toEqual([
    "STOPPEDbillingORDERS1,23420 min 34 sno consumer is connected",
    "LAGGINGauditORDERSunknownunknownno consumer is connected",
  ]);
  expect(screen.getByText("Everything answers")).toBeTruthy();
});

test("a broker that does not answer makes the rate unknown", async () => {
  stubGateway({
    ...NOTHING,
    "GET /v1/cluster": cluster(broker("broker-a"), broker("broker-b", false)),
    "GET /v1/reports/lag_report/rows": lag(),
  });
  await renderView(<OverviewPage />, { operations: OPERATIONS });
  expect(await screen.findByText("Does not answer")).toBeTruthy();
  expect(screen.getByText("broker-b:0")).toBeTruthy();
  expect(screen.getByText("1 / 2")).toBeTruthy();
  expect(screen.getAllByText("unknown").length).toBeGreaterThan(3);
  expect(screen.getByText("timed out")).toBeTruthy();
});

test("without a report the number of bad groups is unknown, not 0", async () => {
  stubGateway({
    ...NOTHING,
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/reports/lag_report/rows": refused("unknown-run", 404),
  });
  await renderView(<OverviewPage />, { operations: OPERATIONS });
  expect((await screen.findAllByText("There is no lag report yet.")).length).toBeGreaterThan(0);
  expect(screen.getByText("Groups in trouble", { selector: "p" }).parentElement?.textContent).toContain("unknown");
});

test("what the gateway can't do, and what the role may not read, is absent", async () => {
  const sent = stubGateway({ "GET /v1/cluster": cluster(broker("broker-a")) });
  await renderView(<OverviewPage />, { operations: ["GET /v1/cluster", "GET /v1/audit"], role: "viewer" });
  expect(await screen.findByRole("table", { name: "Brokers" })).toBeTruthy();
  expect(screen.queryByRole("heading", { name: "Recent changes" })).toBeNull();
  expect(screen.queryByRole("heading", { name: "Groups in trouble" })).toBeNull();
  expect(new Set(sent.map((call) => call.path))).toEqual(new Set(["/v1/cluster"]));
});

test("a hidden tab asks for nothing", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  const sent = stubGateway({
    ...NOTHING,
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/reports/lag_report/rows": lag(),
  });
  await renderView(<OverviewPage />, { operations: OPERATIONS });
  expect(await screen.findByText("Everything answers")).toBeTruthy();
  const minutesLater = () => act(() => vi.advanceTimersByTimeAsync(120_000));
  focusManager.setFocused(false);
  const before = sent.length;
  await minutesLater();
  expect(sent).toHaveLength(before);
  focusManager.setFocused(true);
  await minutesLater();
  expect(sent.length).toBeGreaterThan(before + 20);
});

test("what loads has the size of what comes, so that nothing below it moves", async () => {
  vi.stubGlobal("fetch", () => new Promise(() => undefined));
  await renderView(<OverviewPage />, { operations: OPERATIONS });
  const [health, rates] = screen.getAllByRole("status", { name: "Loading" });
  const skeletons = (of: HTMLElement | undefined) =>
    [...(of?.querySelectorAll<HTMLElement>("[class*=Skeleton]") ?? [])].map((each) =>
      each.style.getPropertyValue("--skeleton-height"),
    );
  expect(skeletons(health)).toHaveLength(4);
  expect(new Set(skeletons(health)).size).toBe(1);
  expect(skeletons(rates)).toHaveLength(1);
});
