/** Jobs of the contract, as the console shows them. */
import type { Schema } from "@/api/types";

export type Job = Schema<"Job">;

/** Returns whether a job can still change. */
export function isActive(job: Job): boolean {
  return job.state === "queued" || job.state === "running";
}

/** Returns the finished share of a job, from 0 to 1; null while the number of all items is unknown. */
export function shareDone(job: Job): number | null {
  if (job.total === null) return null;
  return job.total === 0 ? 1 : Math.min(1, (job.done + job.failed) / job.total);
}

/** Returns how long a job ran, in seconds, up to now for a running one; null before its start. */
export function tookSeconds(job: Job, nowMs: number): number | null {
  if (job.started_at === null) return null;
  const end = job.ended_at === null ? nowMs : Date.parse(job.ended_at);
  return Math.max(0, (end - Date.parse(job.started_at)) / 1000);
}
