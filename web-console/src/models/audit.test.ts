import { expect, test } from "vitest";
import { changedFields, changesOf, toQuery, type AuditEntry } from "./audit";

const entry = (before: object | null, after: object | null) => ({ before, after }) as AuditEntry;

test("a change names the fields that differ, nested ones with dots", () => {
  const found = changesOf(
    entry(
      { perm: "rw", order: false, limits: { a: 1, b: [1, 2] } },
      { perm: "r", order: false, limits: { a: 1, b: [1] } },
    ),
  );
  expect(found).toEqual([
    { field: "limits.b", before: "[1,2]", after: "[1]" },
    { field: "perm", before: '"rw"', after: '"r"' },
  ]);
});

test("a creation has no values before, a deletion none after, and null is a value", () => {
  expect(changesOf(entry(null, { brokers: null }))).toEqual([{ field: "brokers", before: null, after: "null" }]);
  expect(changedFields(entry({ b: 1, a: {} }, null))).toBe("a, b");
  expect(changesOf(entry(null, null))).toEqual([]);
});

test("a name counts only with a kind, and times become instants; the gateway refuses a time that is none", () => {
  const filter = { kind: "", name: "orders", actor: "user:ada", action: "", from: "2026-01-31T08:30", to: "soon" };
  expect(toQuery(filter)).toEqual({ actor: "user:ada", from: new Date("2026-01-31T08:30").toISOString(), to: "soon" });
  expect(toQuery({ ...filter, kind: "topic" })).toMatchObject({ kind: "topic", name: "orders" });
});
