import { expect, test } from "vitest";
import type { Objective } from "@/api/objectives";
import { isIgnored, NO_OBJECTIVE, optionsOf, SETTINGS, toChange, toSettings } from "./objectives";

const objective = (more: Partial<Objective> = {}): Objective => ({
  group: "billing",
  topic: null,
  max_lag_seconds: 60,
  max_lag_messages: null,
  ignore: false,
  ignore_until: null,
  reason: "on call",
  updated_at: "2026-01-01T00:00:00.000Z",
  ...more,
});

test("an objective is a form of texts, and no limit is empty", () => {
  expect(toSettings(objective())).toEqual({ ...NO_OBJECTIVE, max_lag_seconds: "60", reason: "on call" });
});

test("a change sets the named settings; an emptied one is removed, and what is no number is sent as it is", () => {
  const settings = { ...NO_OBJECTIVE, max_lag_seconds: " 1.5 ", max_lag_messages: "many", reason: "x" };
  expect(toChange(settings, SETTINGS)).toEqual({
    max_lag_seconds: 1.5,
    max_lag_messages: "many",
    ignore: false,
    ignore_until: null,
    reason: "x",
  });
  expect(toChange({ ...settings, max_lag_seconds: "" }, ["max_lag_seconds"])).toEqual({ max_lag_seconds: null });
});

test("a change is a command, if the command line can make it", () => {
  const until = "2030-01-31T08:30";
  const settings = { ...NO_OBJECTIVE, max_lag_seconds: "60", ignore: true, ignore_until: until };
  expect(optionsOf(settings, ["max_lag_seconds", "max_lag_messages", "ignore", "ignore_until"])).toEqual([
    ...["--max-lag-seconds", "60", "--max-lag-messages", "-1", "--ignore"],
    ...["--ignore-until", new Date(until).toISOString()],
  ]);
  expect(optionsOf(NO_OBJECTIVE, ["max_lag_seconds", "ignore", "ignore_until"])).toEqual([
    "--max-lag-seconds",
    "0",
    "--no-ignore",
  ]);
  expect(optionsOf(NO_OBJECTIVE, ["reason"])).toBeNull();
  expect(optionsOf({ ...NO_OBJECTIVE, ignore: true }, ["ignore_until"])).toBeNull();
});

test("lag is ignored until the end of the ignore", () => {
  const at = Date.parse("2026-01-10T00:00:00.000Z");
  const until = (time: string | null) => isIgnored(objective({ ignore: true, ignore_until: time }), at);
  expect([until(null), until("2026-01-10T00:00:01Z"), until("2026-01-09T00:00:00Z")]).toEqual([true, true, false]);
  expect(isIgnored(objective(), at)).toBe(false);
});
