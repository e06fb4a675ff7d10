// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { ReportPage } from "./report-page";
import { ReportsPage } from "./reports-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = [
  "GET /v1/reports",
  "POST /v1/reports/{job}/runs",
  "PUT /v1/reports/{job}/schedule",
  "DELETE /v1/reports/{job}/schedule",
  "GET /v1/reports/{job}/runs/{run}/html",
];
const RUN = "0b4a31a2-2c9c-4f5e-8f6b-6a1f6b1f0c11";

const run = (change: object = {}) => ({
  id: RUN,
  job: "lag_report",
  window: null,
  trigger: "manual",
  status: "succeeded",
  progress: null,
  attempt: 1,
  rows: 12,
  error: null,
  created_at: "2026-01-01T00:00:00.000Z",
  started_at: "2026-01-01T00:00:01.000Z",
  finished_at: "2026-01-01T00:00:09.000Z",
  duration_ms: 8_000,
  files: null,
  ...change,
});
const report = (job: string, change: object = {}) => ({
  job,
  schedule: "*/5 * * * *",
  time_zone: "UTC",
  next_run_at: "2026-01-01T00:05:00.000Z",
  schedule_set: null,
  last_run: run({ job }),
  ...change,
});
const row = (group: string, change: object = {}) => ({
  level: "topic",
  group,
  topic: "orders",
  broker: null,
  queue_id: null,
  as_of: "2026-01-01T00:00:05.000Z",
  lag_messages: 40,
  lag_seconds: 600,
  oldest_unconsumed_at: null,
  in_rate: 1,
  out_rate: 0,
  drain_eta_s: null,
  drain_eta_low_s: 3_600,
  drain_eta_high_s: null,
  retention_left_s: null,
  skew: null,
  top_tags: null,
  clients: 0,
  behind_since: null,
  owners: null,
  verdict: "OK",
  cause: null,
  next_step: null,
  evidence: null,
  ...change,
});
const at = (job: string, query = "") => ({
  path: "/reports/$job",
  at: `/reports/${job}${query}`,
  operations: OPERATIONS,
});
const NO_ROWS = { json: { run: RUN, as_of: "2026-01-01T00:00:05.000Z", items: [], next_cursor: null } };

test("each report has its schedule and its last run, and one that runs has its progress", async () => {
  const running = run({ status: "running", progress: { percent: 40, step: "reading samples" }, duration_ms: null });
  stubGateway({
    "GET /v1/reports": {
      json: {
        items: [
          report("lag_report", { last_run: running }),
          report("backlog_profile", { schedule: null, last_run: null }),
        ],
      },
    },
  });
  await renderView(<ReportsPage />, { operations: OPERATIONS });
  const rows = within(await screen.findByRole("table", { name: "Reports" })).getAllByRole("row");
  expect(rows[1]?.textContent).toContain("40 % reading samples");
  expect(rows[2]?.textContent).toContain("On demand only");
  expect(rows[2]?.textContent).toContain("This report has never run.");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Run now: Lag" }).disabled).toBe(true);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Run now: Backlog" }).disabled).toBe(false);
});

test("a run is started, and a refusal is told", async () => {
  const sent = stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report")] } },
    "POST /v1/reports/{job}/runs": refused("metadata-unavailable", 503),
  });
  await renderView(<ReportsPage />, { operations: OPERATIONS });
  fireEvent.click(await screen.findByRole("button", { name: "Run now: Lag" }));
  expect(await screen.findByText("Lag: the run was refused")).toBeTruthy();
  expect(sent.find((call) => call.method === "POST")).toMatchObject({ path: "/v1/reports/lag_report/runs", body: {} });
});

test("a viewer sees no way to run or to plan", async () => {
  stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report")] } },
    "GET /v1/reports/lag_report/rows": NO_ROWS,
  });
  await renderView(<ReportPage />, { ...at("lag_report"), role: "viewer" });
  expect(await screen.findByText("There are no groups in this run.")).toBeTruthy();
  expect(screen.queryByRole("button", { name: /Run now|Change schedule/ })).toBeNull();
});

test("rows of a lag report come worst first, and one opens with its cause, next step and queues", async () => {
  const bad = row("billing", { verdict: "STOPPED", cause: "no client is connected", next_step: "start a consumer" });
  stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report")] } },
    "GET /v1/reports/lag_report/rows": (call) => ({
      json: {
        run: RUN,
        as_of: "2026-01-01T00:00:05.000Z",
        items:
          call.query["level"] === "queue"
            ? [row("billing", { level: "queue", broker: "broker-a", queue_id: 3, lag_messages: null })]
            : [row("search"), bad],
        next_cursor: null,
      },
    }),
  });
  const view = await renderView(<ReportPage />, at("lag_report"));
  const rows = within(await screen.findByRole("table", { name: "Lag of groups" })).getAllByRole("row");
  expect(rows[1]?.textContent).toContain("STOPPED");
  fireEvent.click(screen.getByRole("button", { name: "billing" }));
  expect(await screen.findByText("start a consumer")).toBeTruthy();
  expect(screen.getByText("at least 1 h, no end in sight")).toBeTruthy();
  const queues = await screen.findByRole("table", { name: "Queues" });
  expect(within(queues).getAllByRole("row")[1]?.textContent).toMatch(/broker-a \/ 3.*unknown/);
  expect(view.address()).toContain("group=billing");
});

test("the reason of a failure stands on the page and in the history; a run that succeeded opens its rows", async () => {
  const failed = run({
    status: "failed",
    error: "the brokers did not answer",
    attempt: 2,
    rows: null,
    duration_ms: 3_000,
  });
  stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report", { last_run: failed })] } },
    "GET /v1/reports/lag_report/rows": NO_ROWS,
    "GET /v1/reports/{job}/runs": {
      json: { items: [{ ...failed, id: "another" }, run()], next_cursor: null },
    },
  });
  const view = await renderView(<ReportPage />, at("lag_report", "?tab=runs"));
  const table = await screen.findByRole("table", { name: "Runs" });
  expect(within(table).getByText("the brokers did not answer").parentElement?.textContent).toContain("attempt 2");
  expect(screen.getByRole("alert").textContent).toContain("the brokers did not answer");
  expect(within(table).getAllByRole("row")[2]?.textContent).toMatch(/Succeeded.*8 s.*12/);
  fireEvent.click(within(table).getAllByRole("row")[1] as HTMLElement);
  expect(view.address()).toBe("/reports/lag_report?tab=runs");
  fireEvent.click(within(table).getByRole("button", { name: "Show rows" }));
  expect(await screen.findByText(`Run ${RUN}`)).toBeTruthy();
  expect(screen.getByRole("link", { name: "Open page" }).getAttribute("href")).toBe(
    `/v1/reports/lag_report/runs/${RUN}/html`,
  );
  expect(view.address()).toContain(`run=${RUN}`);
});

test("a schedule is set; an error stands at its field; the way back to the settings removes it", async () => {
  const set = { cron: "0 9 * * *", time_zone: "UTC", set_by: "user:ada", set_at: "2026-01-01T00:00:00.000Z" };
  const sent = stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report", { schedule_set: set })] } },
    "GET /v1/reports/lag_report/rows": NO_ROWS,
    "PUT /v1/reports/{job}/schedule": {
      status: 400,
      json: {
        type: "https://gantry.dev/problems/invalid-value",
        title: "t",
        status: 400,
        detail: "/cron: is no time",
        field: "/cron",
      },
    },
    "DELETE /v1/reports/{job}/schedule": { json: report("lag_report") },
  });
  await renderView(<ReportPage />, at("lag_report"));
  expect(await screen.findByText("A change is set, and the scheduler has not taken it yet.")).toBeTruthy();
  fireEvent.click(await screen.findByRole("button", { name: "Change schedule" }));
  fireEvent.change(screen.getByLabelText(/Cron expression/), { target: { value: "61 * * * *" } });
  fireEvent.click(screen.getByRole("button", { name: "Save schedule" }));
  expect(await screen.findByText("/cron: is no time")).toBeTruthy();
  fireEvent.click(screen.getByLabelText("As the scheduler's settings say"));
  fireEvent.click(screen.getByRole("button", { name: "Save schedule" }));
  expect(await screen.findByText("The schedule is saved. The scheduler takes it within seconds.")).toBeTruthy();
  const changes = sent.filter((call) => call.method !== "GET");
  expect(changes.map((call) => call.method)).toEqual(["PUT", "DELETE"]);
  expect(changes[0]?.body).toEqual({ cron: "61 * * * *", time_zone: "UTC" });
});

test("a report without a run that succeeded says so", async () => {
  stubGateway({
    "GET /v1/reports": { json: { items: [report("backlog_profile", { last_run: null })] } },
    "GET /v1/reports/backlog_profile/rows": refused("unknown-run", 404),
  });
  await renderView(<ReportPage />, at("backlog_profile"));
  expect(await screen.findByText(/No run has succeeded yet/)).toBeTruthy();
  expect(screen.queryByRole("link", { name: "Open page" })).toBeNull();
});

test("a backlog is shown by section, with shares, and an unknown size as unknown", async () => {
  const bucket = (name: string, messages: number) => ({
    group: "billing",
    topic: "orders",
    section: "tag",
    bucket: name,
    lower_bound: null,
    upper_bound: null,
    messages,
    bytes: null,
  });
  const sent = stubGateway({
    "GET /v1/reports": { json: { items: [report("backlog_profile")] } },
    "GET /v1/reports/backlog_profile/rows": {
      json: {
        run: RUN,
        as_of: "2026-01-01T00:00:05.000Z",
        items: [bucket("eu", 30), bucket("us", 10)],
        next_cursor: null,
      },
    },
  });
  await renderView(<ReportPage />, at("backlog_profile", "?section=tag"));
  const rows = within(await screen.findByRole("table", { name: "Backlog" })).getAllByRole("row");
  expect(rows[1]?.textContent).toMatch(/eu.*30.*unknown.*75%/);
  expect(sent.find((call) => call.path.endsWith("/rows"))?.query).toMatchObject({ run: "latest", section: "tag" });
});

test.each([
  ["en", "tag", ["no tag", "unknown", "(UNKNOWN)"]],
  ["zh", "tag", ["无标签", "未知", "(UNKNOWN)"]],
  ["zh", "size", ["(none)", "未知", "(UNKNOWN)"]],
  ["zh", "key", ["(none)", "(unknown)", "(UNKNOWN)"]],
] as const)("names that stand for no tag and for unknown are translated, data is not (%s, %s)", async (...at_) => {
  const [language, section, shown] = at_;
  const items = ["(none)", "(unknown)", "(UNKNOWN)"].map((bucket) => ({
    ...{ group: "billing", topic: "orders", section, bucket, lower_bound: null, upper_bound: null, messages: 1 },
    bytes: bucket === "(unknown)" ? null : 1,
  }));
  stubGateway({
    "GET /v1/reports": { json: { items: [report("backlog_profile")] } },
    "GET /v1/reports/backlog_profile/rows": { json: { run: RUN, as_of: null, items, next_cursor: null } },
  });
  await renderView(<ReportPage />, { ...at("backlog_profile", `?section=${section}`), language });
  const rows = within(await screen.findByRole("table"))
    .getAllByRole("row")
    .slice(1);
  expect(rows.map((row) => within(row).getAllByRole("cell")[0]?.textContent)).toEqual(shown);
});

test.each([
  ["en", ["under 1 min", "1 min to 5 min", "over 7 d", "unknown"]],
  ["zh", ["不到 1 分钟", "1 分钟至 5 分钟", "超过 7 天", "未知"]],
] as const)("the ages of a backlog are in the chosen language (%s)", async (language, ages) => {
  const bounds = [
    [0, 60],
    [60, 300],
    [604_800, null],
    [null, null],
  ] as const;
  const items = bounds.map(([lower_bound, upper_bound]) => ({
    ...{ group: "billing", topic: "orders", section: "age", bucket: `from ${lower_bound}`, messages: 1, bytes: 1 },
    ...{ lower_bound, upper_bound },
  }));
  stubGateway({
    "GET /v1/reports": { json: { items: [report("backlog_profile")] } },
    "GET /v1/reports/backlog_profile/rows": { json: { run: RUN, as_of: null, items, next_cursor: null } },
  });
  await renderView(<ReportPage />, { ...at("backlog_profile"), language });
  for (const age of ages) expect(await screen.findByText(age)).toBeTruthy();
});

test("buckets that samples do not cover are lower bounds, and cut pages are told", async () => {
  const bucket = (hour: number, covered: number) => ({
    bucket_at: `2026-01-01T0${hour}:00:00.000Z`,
    topic: "orders",
    group: null,
    messages: 1_200,
    rate_max: 3,
    lag_messages: null,
    covered_s: covered,
  });
  const sent = stubGateway({
    "GET /v1/reports": { json: { items: [report("throughput_rollup")] } },
    "GET /v1/reports/throughput_rollup/rows": {
      json: {
        unit: "hour",
        from: "2026-01-01T00:00:00.000Z",
        to: "2026-01-01T09:00:00.000Z",
        time_zone: "UTC",
        items: [bucket(1, 3_600), bucket(2, 1_800), bucket(3, 3_600)],
        next_cursor: "more",
      },
    },
  });
  await renderView(<ReportPage />, at("throughput_rollup"));
  expect(await screen.findByText(/There are more buckets than shown/)).toBeTruthy();
  const table = screen.getByRole("table", { name: "Throughput" });
  expect(within(table).getAllByText("at least 1,200").length).toBeGreaterThan(0);
  expect(within(table).queryAllByText("1,200").length).toBeGreaterThan(0);
  const pages = sent.filter((call) => call.path.endsWith("/rows"));
  expect(pages).toHaveLength(5);
  expect(pages[1]?.query).toMatchObject({ from: "2026-01-01T00:00:00.000Z", cursor: "more" });
});

test("a run that failed and is tried again says why, and does not blame the scheduler", async () => {
  const error = "RequestTimeoutError: no answer in time";
  const progress = { percent: 20, step: null };
  const again = run({ status: "queued", attempt: 2, error, progress });
  stubGateway({
    "GET /v1/reports": { json: { items: [report("lag_report", { last_run: again })] } },
    "GET /v1/reports/{job}/runs": { json: { items: [again], next_cursor: null } },
  });
  await renderView(<ReportPage />, { ...at("lag_report"), operations: [...OPERATIONS, "GET /v1/reports/{job}/runs"] });
  const text = /^Attempt 2 failed, another one follows: RequestTimeoutError: no answer in time$/;
  expect(
    await screen.findByText((_, element) => text.test(element?.textContent ?? ""), { selector: "span" }),
  ).toBeTruthy();
  expect(screen.queryByText(/Check that the report scheduler is running/)).toBeNull();
  expect(screen.queryByRole("progressbar")).toBeNull();
});
