import type { Schema } from "@/api/types";

export interface RatePoint {
  at: string;
  /** Messages per second, over the part of the bucket that samples cover; null where nothing is known. */
  stored: number | null;
  consumed: number | null;
}

/** Returns the rates of all topics and of all groups over time, the oldest first. */
export function toRates(buckets: readonly Schema<"ThroughputBucket">[]): RatePoint[] {
  const points = new Map<string, RatePoint>();
  for (const bucket of buckets) {
    const point = points.get(bucket.bucket_at) ?? { at: bucket.bucket_at, stored: null, consumed: null };
    points.set(bucket.bucket_at, point);
    if (bucket.messages === null || !bucket.covered_s) continue;
    // The covered part is that of one queue. The messages of the others are of a longer time.
    const rate = Math.min(bucket.messages / bucket.covered_s, bucket.rate_max ?? Infinity);
    if (bucket.group === null) point.stored = (point.stored ?? 0) + rate;
    else point.consumed = (point.consumed ?? 0) + rate;
  }
  return [...points.values()].sort((a, b) => a.at.localeCompare(b.at));
}
