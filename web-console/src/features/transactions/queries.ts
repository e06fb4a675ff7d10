import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import type { Answer } from "@/api/types";
import { deciderOf, type Transaction } from "@/models/transactions";

const EVERY_MS = 10_000;
const OPEN_EVERY_MS = 3_000;
const PAGE = 100;
const DECISIONS_MAX = 10;

export const keys = makeKeys("transactions");

export type Decided = Answer<"/v1/transactions/{transaction}:commit", "post">;
export type Checked = Answer<"/v1/transactions/{transaction}:check", "post">;

/** Transactions, newest first, page by page. `filter` is a query of the contract. */
export const transactionsQuery = (filter: Record<string, string>) =>
  infiniteQueryOptions({
    queryKey: keys.list(filter),
    queryFn: async ({ pageParam, signal }) => {
      const query = { ...filter, limit: PAGE, cursor: pageParam };
      return (await request("get", "/v1/transactions", { query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: EVERY_MS,
  });

/** One transaction; an open one is read again often. */
export const transactionQuery = (transaction: string) =>
  queryOptions({
    queryKey: keys.detail(transaction),
    queryFn: async ({ signal }): Promise<Transaction> =>
      (await request("get", "/v1/transactions/{transaction}", { path: { transaction }, signal })).data,
    refetchInterval: ({ state }) => (isSettled(state.data) ? EVERY_MS : OPEN_EVERY_MS),
  });

/** Who decided a transaction; null if the audit trail does not tell. */
export const deciderQuery = (transaction: string) =>
  queryOptions({
    queryKey: keys.part(transaction, "decider"),
    queryFn: async ({ signal }): Promise<string | null> => {
      const query = { kind: "transaction", name: transaction, limit: DECISIONS_MAX };
      return deciderOf((await request("get", "/v1/audit", { query, signal })).data.items);
    },
  });

/** Commits a transaction, or rolls it back. Throws ApiError 409 (`already-decided`) if it is decided otherwise. */
export async function decide(transaction: string, decision: "commit" | "rollback"): Promise<Decided> {
  const path = { transaction };
  return decision === "commit"
    ? (await request("post", "/v1/transactions/{transaction}:commit", { path })).data
    : (await request("post", "/v1/transactions/{transaction}:rollback", { path })).data;
}

/** Asks the producers of an open transaction; takes up to 20 s. */
export async function checkNow(transaction: string): Promise<Checked> {
  return (await request("post", "/v1/transactions/{transaction}:check", { path: { transaction } })).data;
}

/** Whether a transaction has its end and its broker knows it. */
function isSettled(transaction: Transaction | undefined): boolean {
  if (transaction === undefined || transaction.state === "open") return false;
  return transaction.decided_at === null || transaction.delivered_at !== null;
}
