import type { Schema } from "@/api/types";

export type LagRow = Schema<"LagRow">;

/** Verdicts from worst to best, as gantry/model/lag.py sorts them. */
const VERDICTS = [
  "RETENTION_RISK",
  "STALLED",
  "STOPPED",
  "OVER_OBJECTIVE",
  "RETRY_LOOP",
  "HOT_QUEUE",
  "LAGGING",
  "REWOUND",
  "NO_CONSUMER",
  "UNKNOWN",
  "PAUSED",
  "IGNORED",
  "OK",
];
const RED_UNTIL = VERDICTS.indexOf("OVER_OBJECTIVE");
const ORANGE_UNTIL = VERDICTS.indexOf("NO_CONSUMER");

/** Returns the rank of a verdict; 0 is the worst. A verdict of a later version has the rank of UNKNOWN. */
export function severityOf(verdict: string): number {
  const at = VERDICTS.indexOf(verdict);
  return at === -1 ? VERDICTS.indexOf("UNKNOWN") : at;
}

/** Returns the colour of a verdict. The verdict itself is always written beside it. */
export function colorOf(verdict: string): "red" | "orange" | "gray" | "green" {
  if (verdict === "OK") return "green";
  const rank = severityOf(verdict);
  return rank <= RED_UNTIL ? "red" : rank <= ORANGE_UNTIL ? "orange" : "gray";
}

/** Returns whether a group needs somebody to look at it. */
export function isBad(verdict: string): boolean {
  return severityOf(verdict) <= ORANGE_UNTIL;
}

/** Returns the rows of topics, the worst first; within a verdict, the longest lag first, and unknown lag last. */
export function worstFirst(rows: readonly LagRow[]): LagRow[] {
  return rows
    .filter((row) => row.level === "topic")
    .sort(
      (a, b) =>
        severityOf(a.verdict) - severityOf(b.verdict) ||
        (b.lag_seconds ?? -1) - (a.lag_seconds ?? -1) ||
        (b.lag_messages ?? -1) - (a.lag_messages ?? -1),
    );
}
