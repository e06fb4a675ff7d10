import { expect, test } from "vitest";
import { checkTime, dueQuery, rescheduleCommand, withMoves, type Waiting } from "./scheduled";
import { localTime, toInstant } from "./times";

const NOW = Date.parse("2026-01-01T00:00:00.000Z");
const waiting = (handle: string, second: number) =>
  ({ handle, deliver_at: `2026-01-01T00:00:0${second}.000Z` }) as Waiting;

test("a filter becomes a query of instants, without what is empty; the gateway refuses a time that is none", () => {
  expect(dueQuery({ from: "", to: "never" })).toEqual({ to: "never" });
  expect(dueQuery({ from: "2026-01-31T08:30", to: "" })).toEqual({ from: new Date("2026-01-31T08:30").toISOString() });
});

test.each([
  ["10m", 600_000],
  [" 500ms ", 500],
  ["0s", 0],
  ["40d", 40 * 86_400_000],
])("the delay %j comes after %i ms", (delay, ms) => {
  expect(checkTime({ by: "delay", delay, time: "" }, NOW)).toEqual({ body: { delay: delay.trim() }, atMs: NOW + ms });
});

test.each([
  ["", "delay"],
  ["10", "delay"],
  ["-10m", "delay"],
  ["1.5h", "delay"],
  ["1w", "delay"],
  ["41d", "delayMax"],
  ["961h", "delayMax"],
])("the delay %j is refused: %s", (delay, problem) => {
  expect(checkTime({ by: "delay", delay, time: "" }, NOW)).toEqual({ problem });
});

test("a time is one of the reader's zone, also a past one; others are refused", () => {
  const instant = new Date("2020-01-31T08:30:05").toISOString();
  const past = { by: "time", delay: "", time: "2020-01-31T08:30:05" } as const;
  expect(checkTime(past, NOW)).toEqual({ body: { deliver_at: instant }, atMs: Date.parse(instant) });
  expect(checkTime({ ...past, time: "" }, NOW)).toEqual({ problem: "time" });
});

test("a new time is a command", () => {
  expect(rescheduleCommand("orders", "h=", { delay: "10m" })).toBe("gantry message reschedule orders h= --delay 10m");
  expect(rescheduleCommand("orders", "h", { deliver_at: "2026-01-01T00:00:00.000Z" })).toBe(
    "gantry message reschedule orders h --deliver-at 2026-01-01T00:00:00.000Z",
  );
});

test("a recalled message is not shown, and a moved one has its new place until the broker lists it", () => {
  const listed = [waiting("a", 1), waiting("b", 2), waiting("c", 3)];
  const moved = { handle: "a2", deliver_at: "2026-01-01T00:00:05.000Z" };
  const moves = new Map([
    ["a", moved],
    ["b", null],
  ]);
  expect(withMoves(listed, moves)).toEqual([listed[2], { ...listed[0], ...moved }]);
  const after = [...listed, waiting("a2", 5)];
  expect(withMoves(after, moves).map((message) => message.handle)).toEqual(["c", "a2"]);
});

test("a message that moved twice has its last place, and moves in a circle end", () => {
  const at = "2026-01-01T00:00:05.000Z";
  const twice = new Map([
    ["a", { handle: "b", deliver_at: at }],
    ["b", { handle: "c", deliver_at: at }],
  ]);
  expect(withMoves([waiting("a", 1)], twice).map((message) => message.handle)).toEqual(["c"]);
  const circle = new Map([
    ["a", { handle: "b", deliver_at: at }],
    ["b", { handle: "b", deliver_at: at }],
  ]);
  expect(withMoves([waiting("a", 1)], circle).map((message) => message.handle)).toEqual(["b"]);
});

test("a time of the contract survives a form", () => {
  expect(toInstant(localTime("2026-01-31T08:30:05.000Z"))).toBe("2026-01-31T08:30:05.000Z");
  expect(localTime("never")).toBe("");
});
