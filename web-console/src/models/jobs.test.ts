import { expect, test } from "vitest";
import { isActive, shareDone, tookSeconds, type Job } from "./jobs";

const job = (change: Partial<Job>): Job => ({
  job: "j",
  kind: "redrive",
  arguments: {},
  state: "running",
  cancel_requested: false,
  done: 3,
  failed: 1,
  total: 8,
  error: null,
  created_by: "ada",
  created_at: "2026-01-01T00:00:00.000Z",
  started_at: "2026-01-01T00:00:10.000Z",
  ended_at: null,
  ...change,
});

test("failed items count as finished, and an unknown total has no share", () => {
  expect(shareDone(job({}))).toBe(0.5);
  expect(shareDone(job({ total: null }))).toBeNull();
  expect(shareDone(job({ total: 0, done: 0, failed: 0 }))).toBe(1);
});

test("a running job takes time until now, an ended one until its end, a queued one none that is known", () => {
  const now = Date.parse("2026-01-01T00:00:30.000Z");
  expect(tookSeconds(job({}), now)).toBe(20);
  expect(tookSeconds(job({ ended_at: "2026-01-01T00:00:15.000Z" }), now)).toBe(5);
  expect(tookSeconds(job({ state: "queued", started_at: null }), now)).toBeNull();
});

test("only queued and running jobs are active", () => {
  expect(
    (["queued", "running", "done", "failed", "cancelled"] as const).map((state) => isActive(job({ state }))),
  ).toEqual([true, true, false, false, false]);
});
