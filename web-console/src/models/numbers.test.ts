import { expect, test } from "vitest";
import {
  ageSeconds,
  difference,
  formatBytes,
  formatCount,
  formatDuration,
  formatRate,
  formatShare,
  formatTime,
  secondsUntil,
  type WithUnit,
} from "./numbers";

const withUnit: WithUnit = (unit, value) => `${value} ${unit}`;

test("numbers of 64 bits keep every digit", () => {
  expect(formatCount("9223372036854775807", "en")).toBe("9,223,372,036,854,775,807");
  expect(formatCount(1234567, "en")).toBe("1,234,567");
  expect(difference("9007199254740993", "9007199254740995")).toBe(2n);
});

test("an unknown value stays unknown", () => {
  expect([
    formatCount(null, "en"),
    formatRate(undefined, "en"),
    formatBytes(null, "en", withUnit),
    formatShare(null, "en"),
  ]).toEqual([null, null, null, null]);
  expect([
    formatDuration(null, "en", withUnit),
    formatTime("no time", "en"),
    ageSeconds(null, 0),
    difference(null, "1"),
  ]).toEqual([null, null, null, null]);
  expect(formatCount("12x", "en")).toBeNull();
});

test("zero is a value", () => {
  expect([
    formatCount(0, "en"),
    formatRate(0, "en"),
    formatBytes(0, "en", withUnit),
    formatDuration(0, "en", withUnit),
  ]).toEqual(["0", "0", "0 B", "0 s"]);
});

test("lengths of time show two units", () => {
  expect(
    [0.25, 1, 61, 3_600, 90_061, 86_400 * 4_000].map((seconds) => formatDuration(seconds, "en", withUnit)),
  ).toEqual(["250 ms", "1 s", "1 min 1 s", "1 h", "1 d 1 h", "4,000 d"]);
});

test("sizes and rates are short", () => {
  expect(["1023", 1536, 1024 ** 4].map((bytes) => formatBytes(bytes, "en", withUnit))).toEqual([
    "1,023 B",
    "1.5 KiB",
    "1 TiB",
  ]);
  expect([0.126, 12.34, 1234.5].map((rate) => formatRate(rate, "en"))).toEqual(["0.13", "12.3", "1,235"]);
  expect(ageSeconds("2026-01-01T00:00:10Z", Date.parse("2026-01-01T00:00:05Z"))).toBe(0);
});

test("the distance of a time has a sign, and none of an unknown time is known", () => {
  const now = Date.parse("2026-01-01T00:00:05Z");
  const times = ["2026-01-01T00:00:10Z", "2026-01-01T00:00:00Z", null, "never"];
  expect(times.map((time) => secondsUntil(time, now))).toEqual([5, -5, null, null]);
});
