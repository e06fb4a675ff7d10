/** Transactions, as the console shows them. */
import type { Schema } from "@/api/types";
import { given } from "./filters";

export type Transaction = Schema<"Transaction">;

/** What a reader can ask for: the states of the contract, and the open ones that should have been decided. */
export const STATES = ["open", "overdue", "committed", "rolled_back", "expired"] as const;
export type ShownState = (typeof STATES)[number];

/** Filters of transactions, as texts of an address; empty for any. */
export interface TransactionFilter {
  state: string;
  group: string;
  topic: string;
}

export const ANY_TRANSACTION: TransactionFilter = { state: "", group: "", topic: "" };

/** Returns the query of a filter. The contract has no state for those that are overdue: they are open. */
export function toQuery({ state, group, topic }: TransactionFilter): Record<string, string> {
  return given({ state: state === "overdue" ? "open" : state, group, topic });
}

/**
 * Returns whether an open transaction should have been decided: the time in which nobody is asked about it has ended.
 * Null is unknown.
 */
export function isOverdue(transaction: Transaction, nowMs: number): boolean | null {
  if (transaction.state !== "open") return false;
  if (transaction.checks > 0) return true;
  return transaction.next_check_at === null ? null : Date.parse(transaction.next_check_at) <= nowMs;
}

/** Returns the state of a transaction as a reader sees it. */
export function shownState(transaction: Transaction, nowMs: number): ShownState {
  return isOverdue(transaction, nowMs) ? "overdue" : transaction.state;
}

/** Returns when the time ends in which nobody is asked; null if it is unknown, undefined if it has ended. */
export function immunityEnd(transaction: Transaction, nowMs: number): string | null | undefined {
  return isOverdue(transaction, nowMs) === true ? undefined : transaction.next_check_at;
}

/** Returns who decided, as the audit trail tells it; null if it does not. */
export function deciderOf(entries: readonly Pick<Schema<"AuditEntry">, "action" | "actor">[]): string | null {
  const decisions = ["transaction.commit", "transaction.rollback"];
  return entries.find((entry) => decisions.includes(entry.action))?.actor ?? null;
}

/** The actor of a decision that producers gave when they were asked. */
export const PRODUCERS = "check";
