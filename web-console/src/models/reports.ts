/** Reports of the contract, as the console shows them. */
import type { Schema } from "@/api/types";

export type Report = Schema<"Report">;
export type ReportRun = Schema<"ReportRun">;
export type ScheduleChange = Schema<"NewReportSchedule">;
export type BacklogRow = Schema<"BacklogRow">;
export type Bucket = Schema<"ThroughputBucket">;

export const LATEST = "latest";
export const SECTIONS = ["age", "tag", "key", "size", "queue", "filter"] as const;
export const UNITS = ["minute", "hour", "day"] as const;
const UNIT_SECONDS: Record<string, number> = { minute: 60, hour: 3_600, day: 86_400 };

/** Returns whether a run can still change. */
export function isActive(run: ReportRun): boolean {
  return run.status === "queued" || run.status === "running";
}

/** Returns whether a run has failed and waits for another attempt. The scheduler lets some time pass before it. */
export function isTriedAgain(run: ReportRun): boolean {
  return run.status === "queued" && run.attempt > 0;
}

/** Returns how long a run took, in seconds, up to now for a running one; null before its start. */
export function tookSeconds(run: ReportRun, nowMs: number): number | null {
  if (run.duration_ms !== null) return run.duration_ms / 1_000;
  if (run.started_at === null) return null;
  return Math.max(0, (nowMs - Date.parse(run.started_at)) / 1_000);
}

/** Returns whether the scheduler has not put a schedule in force yet that somebody has set. */
export function isScheduleWaiting(report: Report): boolean {
  const wanted = report.schedule_set;
  if (wanted === null || wanted.cron === report.schedule) {
    return wanted !== null && wanted.cron !== null && wanted.time_zone !== report.time_zone;
  }
  return true;
}

/**
 * Returns what the name of a bucket stands for, or null for a name that is data. The report counts a message without a tag
 * and one with the tag "(none)" in one bucket, so these can't be told apart. Messages that were not read have no bytes,
 * which tells them from those with the tag "(unknown)".
 */
export function standInOf({ section, bucket, bytes }: BacklogRow): "unknown" | "noTag" | null {
  if (bucket === "(unknown)" && (section === "size" || (section === "tag" && bytes === null))) return "unknown";
  return bucket === "(none)" && section === "tag" ? "noTag" : null;
}

/** Returns the share of each row in the messages of its group, topic and section; null where a number is unknown. */
export function sharesOf(rows: readonly BacklogRow[]): Map<BacklogRow, number | null> {
  const keyOf = (row: BacklogRow) => JSON.stringify([row.group, row.topic, row.section]);
  const totals = new Map<string, number | null>();
  for (const row of rows) {
    const before = totals.get(keyOf(row));
    totals.set(keyOf(row), before === null || row.messages === null ? null : (before ?? 0) + row.messages);
  }
  return new Map(
    rows.map((row) => {
      const total = totals.get(keyOf(row)) ?? null;
      return [row, row.messages === null || total === null || total === 0 ? null : row.messages / total];
    }),
  );
}

/** Returns buckets without the last time, which may be a part of its rows, if there are more rows than were read. */
export function wholeBuckets(buckets: readonly Bucket[], isCut: boolean): readonly Bucket[] {
  const last = buckets.at(-1)?.bucket_at;
  return isCut ? buckets.filter((bucket) => bucket.bucket_at !== last) : buckets;
}

/** Returns whether the samples cover less than the bucket; its messages are then a lower bound. */
export function isLowerBound(bucket: Bucket, unit: string): boolean {
  return bucket.covered_s === null || bucket.covered_s < (UNIT_SECONDS[unit] ?? 0);
}
