import { expect, test } from "vitest";
import { toQuery } from "./audit";
import { letterQuery, ANY_LETTER } from "./dead-letters";
import { ANY_TIME, dueQuery } from "./scheduled";
import { toFilterTime } from "./times";

test("a time of a filter that is none is not dropped, so that the gateway refuses it by name", () => {
  const any = { kind: "", name: "", actor: "", action: "", to: "" };
  expect(toFilterTime("")).toBe("");
  expect(toFilterTime("2026-01-31T08:30:00.000Z")).toBe("2026-01-31T08:30:00.000Z");
  expect(dueQuery({ ...ANY_TIME, from: "garbage" })).toEqual({ from: "garbage" });
  expect(letterQuery({ ...ANY_LETTER, to: "garbage" })).toEqual({ to: "garbage" });
  expect(toQuery({ ...any, from: "garbage" })).toEqual({ from: "garbage" });
});
