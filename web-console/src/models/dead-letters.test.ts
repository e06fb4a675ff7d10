import { expect, test } from "vitest";
import { ANY_LETTER, letterQuery, redriveBody, redriveCommand } from "./dead-letters";

test("a filter becomes a query of instants, without what is empty; the gateway refuses a time that is none", () => {
  expect(letterQuery(ANY_LETTER)).toEqual({});
  expect(letterQuery({ topic: "orders", tag: "", from: "2026-01-31T08:30", to: "never" })).toEqual({
    topic: "orders",
    from: new Date("2026-01-31T08:30").toISOString(),
    to: "never",
  });
});

test("one letter is named by its id, and others by a filter", () => {
  const one = { selection: { id: "A1" }, toOrigin: false, ratePerS: 100 };
  expect(redriveBody(one, true)).toEqual({ message_ids: ["A1"], to: "retry", rate_per_s: 100, dry_run: true });
  expect(redriveCommand("billing", one)).toBe("gantry dlq redrive billing A1");
  const some = { selection: { query: { topic: "orders" } }, toOrigin: true, ratePerS: 5 };
  expect(redriveBody(some, false)).toEqual({
    filter: { topic: "orders" },
    to: "origin",
    rate_per_s: 5,
    dry_run: false,
  });
  expect(redriveCommand("billing", some)).toBe("gantry dlq redrive billing --topic orders --origin --rate 5");
});

test("a command names all letters only if no filter leaves any out", () => {
  const all = { selection: { query: {} }, toOrigin: false, ratePerS: 100 };
  expect(redriveBody(all, false)["filter"]).toEqual({});
  expect(redriveCommand("billing", all)).toBe("gantry dlq redrive billing --all");
});
