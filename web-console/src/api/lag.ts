import { ApiError } from "./api-error";
import { request } from "./request";
import type { Schema } from "./types";

export interface LagReport {
  asOf: string;
  rows: Schema<"LagRow">[];
  /** Whether the report has more rows than were read. */
  isPart: boolean;
}

const ROWS_A_PAGE = 1_000;

/** Reads rows of the latest lag report, in at most `pages` requests of 1,000 rows; null if there was no report yet. */
export async function latestLag(
  filter: { topic?: string; group?: string; level?: "topic" | "queue" },
  signal: AbortSignal,
  pages = 1,
): Promise<LagReport | null> {
  const rows: Schema<"LagRow">[] = [];
  let run: string | undefined;
  let cursor: string | null = null;
  try {
    for (let page = 0; ; page += 1) {
      const query: Record<string, string | number | null | undefined> = { ...filter, run, limit: ROWS_A_PAGE, cursor };
      const { data } = await request("get", "/v1/reports/lag_report/rows", { query, signal });
      rows.push(...data.items);
      // All pages are of one run, although a newer one may end in between.
      run = data.run;
      cursor = data.next_cursor;
      if (cursor === null || page + 1 >= pages) return { asOf: data.as_of, rows, isPart: cursor !== null };
    }
  } catch (error) {
    if (error instanceof ApiError && error.kind === "unknown-run") return null;
    throw error;
  }
}
