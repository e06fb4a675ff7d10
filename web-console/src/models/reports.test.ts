import { expect, test } from "vitest";
import {
  isLowerBound,
  isScheduleWaiting,
  sharesOf,
  standInOf,
  tookSeconds,
  wholeBuckets,
  type BacklogRow,
  type Bucket,
  type Report,
  type ReportRun,
} from "./reports";

const report = (change: Partial<Report>): Report => ({
  job: "lag_report",
  schedule: "*/5 * * * *",
  time_zone: "UTC",
  next_run_at: null,
  schedule_set: null,
  last_run: null,
  ...change,
});
const set = (cron: string | null, zone = "UTC") => ({
  cron,
  time_zone: zone,
  set_by: "user:ada",
  set_at: "2026-01-01",
});

test.each([
  [report({}), false],
  [report({ schedule_set: set("*/5 * * * *") }), false],
  [report({ schedule_set: set("0 8 * * *") }), true],
  [report({ schedule_set: set("*/5 * * * *", "Europe/Berlin") }), true],
  [report({ schedule_set: set(null) }), true],
  [report({ schedule: null, time_zone: null, schedule_set: set(null) }), false],
])("a schedule waits until the one in force is the same: %#", (given, expected) => {
  expect(isScheduleWaiting(given)).toBe(expected);
});

test("a run takes no time before its start, and counts on while it runs", () => {
  const run = { duration_ms: null, started_at: null } as ReportRun;
  expect(tookSeconds(run, 5_000)).toBeNull();
  expect(tookSeconds({ ...run, started_at: new Date(2_000).toISOString() }, 5_000)).toBe(3);
  expect(tookSeconds({ ...run, duration_ms: 1_500 }, 5_000)).toBe(1.5);
});

test("shares are of one group, topic and section; an unknown number makes all of them unknown", () => {
  const row = (group: string, messages: number | null) =>
    ({ group, topic: "orders", section: "tag", bucket: String(messages), messages }) as BacklogRow;
  const rows = [row("a", 30), row("a", 10), row("b", 5), row("b", null), row("c", 0)];
  expect([...sharesOf(rows).values()]).toEqual([0.75, 0.25, null, null, null]);
});

test("a tag (unknown) whose bodies were read is data", () => {
  const row = { section: "tag", bucket: "(unknown)", bytes: null } as BacklogRow;
  expect(standInOf(row)).toBe("unknown");
  expect(standInOf({ ...row, bytes: 12 })).toBeNull();
  expect(standInOf({ ...row, section: "filter" })).toBeNull();
});

test("the last time of rows that go on is left out", () => {
  const buckets = ["1", "2", "2"].map((at) => ({ bucket_at: at }) as Bucket);
  expect(wholeBuckets(buckets, true).map((each) => each.bucket_at)).toEqual(["1"]);
  expect(wholeBuckets(buckets, false)).toHaveLength(3);
});

test("messages of a bucket that samples do not cover are a lower bound", () => {
  const bucket = { covered_s: 60 } as Bucket;
  expect(isLowerBound(bucket, "minute")).toBe(false);
  expect(isLowerBound(bucket, "hour")).toBe(true);
  expect(isLowerBound({ ...bucket, covered_s: null }, "minute")).toBe(true);
});
