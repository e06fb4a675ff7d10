import { expect, test } from "vitest";
import type { Group, OffsetReset } from "@/api/groups";
import {
  isPolicy,
  movedBy,
  NEW_GROUP,
  optionsOf,
  placeOf,
  policyOf,
  policyText,
  summariesOf,
  toChange,
  toSettings,
} from "./groups";
import type { LagRow } from "./lag";

const group = (name: string, more: Partial<Group> = {}) =>
  ({
    group: name,
    retry_max_times: 16,
    retry_queues: 1,
    consume: true,
    from_min: true,
    broadcast: true,
    orderly: false,
    consume_timeout_minutes: 15,
    notify_changes: true,
    retry_policy: null,
    ...more,
  }) as Group;

const row = (name: string, topic: string, more: Partial<LagRow> = {}) =>
  ({
    level: "topic",
    group: name,
    topic,
    verdict: "OK",
    cause: null,
    lag_messages: 0,
    lag_seconds: 0,
    in_rate: 1,
    out_rate: 1,
    clients: 1,
    ...more,
  }) as LagRow;

test("a group has the worst verdict of its topics, the sum of the messages and the longest time", () => {
  const rows = [
    row("G", "a", { lag_messages: 5, lag_seconds: 2, in_rate: 3, out_rate: 1 }),
    row("G", "b", { verdict: "STALLED", cause: "nobody commits", lag_messages: 7, lag_seconds: 90, clients: 3 }),
    row("G", "b", { level: "queue", verdict: "RETENTION_RISK", lag_messages: 1_000 }),
    row("other", "a", { lag_messages: 9 }),
  ];
  expect(summariesOf([group("G")], rows)).toEqual([
    {
      group: group("G"),
      verdict: "STALLED",
      cause: "nobody commits",
      messages: 12,
      seconds: 90,
      trend: 2,
      clients: 3,
    },
  ]);
});

test("one unknown topic makes the sum unknown, and a group that is not in the report is unknown", () => {
  const rows = [row("G", "a", { lag_messages: 5 }), row("G", "b", { lag_messages: null, out_rate: null })];
  const [known, absent] = summariesOf([group("G"), group("new")], rows);
  expect(known).toMatchObject({ messages: null, trend: null, seconds: 0 });
  expect(absent).toMatchObject({ verdict: null, messages: null, seconds: null, clients: null });
});

test("retry policies are read and written as on the command line", () => {
  for (const text of ["", "levels", "10s,1m,2h,1d", "1500ms", "exponential:5s,2,2h"]) {
    expect(policyText(policyOf(text))).toBe(text);
  }
  expect(policyOf("90s, 1h")).toEqual({ kind: "delays", delays_ms: [90_000, 3_600_000] });
  for (const text of ["soon", "10", "10s,", "exponential:5s,2", "exponential:5s,x,2h", "exponential:5s,2,2h,1"]) {
    expect(isPolicy(text), text).toBe(false);
  }
});

test("only what changed is in the body", () => {
  const settings = { ...toSettings(group("G")), retry_max_times: "3", consume: false, retry_policy: "levels" };
  expect(toChange(settings, ["consume", "retry_max_times", "retry_policy"])).toEqual({
    consume: false,
    retry_max_times: 3,
    retry_policy: { kind: "levels" },
  });
});

test("a place needs a time if it is one", () => {
  expect([placeOf("earliest", ""), placeOf("time", ""), placeOf("time", "soon")]).toEqual(["earliest", null, null]);
  expect(placeOf("time", "2026-01-02T03:04:05")).toBe(new Date("2026-01-02T03:04:05").toISOString());
});

test("moved messages are summed without loss, and what did not move is not counted", () => {
  const item = (messages: string | null, outcome = "planned") => ({ messages, outcome }) as OffsetReset["items"][0];
  const items = [item("9007199254740993"), item("2"), item("-5"), item(null), item("8", "not_reset")];
  expect(movedBy(items)).toEqual({ again: 9007199254740995n, skipped: 5n, unknown: 1, failed: 1 });
});

test("a new group has the contract's defaults, and what is no number stays a text", () => {
  expect(toSettings(group("G"))).toEqual(NEW_GROUP);
  const settings = { ...NEW_GROUP, retry_max_times: "", retry_queues: "2x", consume_timeout_minutes: " 7 " };
  expect(toChange(settings, ["retry_max_times", "retry_queues", "consume_timeout_minutes"])).toEqual({
    retry_max_times: "",
    retry_queues: "2x",
    consume_timeout_minutes: 7,
  });
  expect(optionsOf({ ...settings, orderly: true, consume: false }, ["consume", "orderly", "retry_max_times"])).toEqual([
    "--no-consume",
    "--orderly",
  ]);
});
