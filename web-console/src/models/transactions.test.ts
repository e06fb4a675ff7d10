import { expect, test } from "vitest";
import { deciderOf, immunityEnd, isOverdue, shownState, toQuery, type Transaction } from "./transactions";

const NOW = Date.parse("2026-01-01T00:01:00.000Z");
const BEFORE = "2026-01-01T00:00:59.000Z";
const AFTER = "2026-01-01T00:01:01.000Z";
const one = (change: Partial<Transaction>) =>
  ({ state: "open", checks: 0, next_check_at: null, ...change }) as Transaction;

test.each([
  [one({ next_check_at: AFTER }), false, "open"],
  [one({ next_check_at: BEFORE }), true, "overdue"],
  [one({ next_check_at: AFTER, checks: 1 }), true, "overdue"],
  [one({}), null, "open"],
  [one({ state: "committed", checks: 3 }), false, "committed"],
  [one({ state: "expired", checks: 15 }), false, "expired"],
])("%# is overdue: %j", (transaction, overdue, state) => {
  expect([isOverdue(transaction, NOW), shownState(transaction, NOW)]).toEqual([overdue, state]);
});

test("immunity ends at the first check; its end may be unknown, and may be past", () => {
  expect(immunityEnd(one({ next_check_at: AFTER }), NOW)).toBe(AFTER);
  expect(immunityEnd(one({}), NOW)).toBeNull();
  expect(immunityEnd(one({ next_check_at: AFTER, checks: 1 }), NOW)).toBeUndefined();
});

test("overdue transactions are asked for as open ones", () => {
  expect(toQuery({ state: "overdue", group: "", topic: "orders" })).toEqual({ state: "open", topic: "orders" });
  expect(toQuery({ state: "", group: "", topic: "" })).toEqual({});
});

test("the audit trail tells who decided, if it has a decision", () => {
  const decision = { action: "transaction.rollback", actor: "user:ada" };
  expect(deciderOf([{ action: "transaction.note", actor: "x" }, decision])).toBe("user:ada");
  expect(deciderOf([])).toBeNull();
});
