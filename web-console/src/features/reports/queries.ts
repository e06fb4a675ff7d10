import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { ApiError } from "@/api/api-error";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import {
  isActive,
  wholeBuckets,
  type Bucket,
  type Report,
  type ReportRun,
  type ScheduleChange,
} from "@/models/reports";

const IDLE_MS = 15_000;
const ACTIVE_MS = 2_000;
const PAGE = 100;
const ROWS = 500;
const BUCKETS = 1_000;
const BUCKET_PAGES_MAX = 5;

export const keys = makeKeys("reports");

/** All report jobs. While one runs, they are read more often. */
export const reportsQuery = queryOptions({
  queryKey: keys.list(),
  queryFn: async ({ signal }) => (await request("get", "/v1/reports", { signal })).data.items,
  refetchInterval: ({ state }) =>
    state.data?.some((report) => report.last_run !== null && isActive(report.last_run)) ? ACTIVE_MS : IDLE_MS,
});

/** The runs of a job, newest first, page by page. */
export const runsQuery = (job: string) =>
  infiniteQueryOptions({
    queryKey: keys.part(job, "runs"),
    queryFn: async ({ pageParam, signal }) => {
      const query = { limit: PAGE, cursor: pageParam };
      return (await request("get", "/v1/reports/{job}/runs", { path: { job }, query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: ({ state }) => (state.data?.pages.some((page) => page.items.some(isActive)) ? ACTIVE_MS : IDLE_MS),
  });

/** The rows of topics of a lag report. `newest` is the newest run, after which `latest` means another one. */
export const lagRowsQuery = (run: string, newest: string) =>
  infiniteQueryOptions({
    queryKey: keys.part("lag_report", "rows", { run, newest }),
    queryFn: async ({ pageParam, signal }) => {
      const query = { run, level: "topic", limit: ROWS, cursor: pageParam };
      return (await request("get", "/v1/reports/lag_report/rows", { query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** The queues of a group's topic in a lag report. */
export const lagQueuesQuery = (run: string, group: string, topic: string) =>
  queryOptions({
    queryKey: keys.part("lag_report", "queues", { run, group, topic }),
    queryFn: async ({ signal }) => {
      const query = { run, group, topic, level: "queue", limit: ROWS };
      return (await request("get", "/v1/reports/lag_report/rows", { query, signal })).data;
    },
  });

/** The rows of one section of a backlog profile. */
export const backlogRowsQuery = (run: string, newest: string, section: string) =>
  infiniteQueryOptions({
    queryKey: keys.part("backlog_profile", "rows", { run, newest, section }),
    queryFn: async ({ pageParam, signal }) => {
      const query = { run, section, limit: ROWS, cursor: pageParam };
      return (await request("get", "/v1/reports/backlog_profile/rows", { query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export interface BucketsRead {
  buckets: readonly Bucket[];
  /** Whether there are later buckets that were not read. */
  isCut: boolean;
}

/** Buckets of throughput, up to 5,000 of them. */
export const throughputQuery = (unit: string, topic: string, newest: string) =>
  queryOptions({
    queryKey: keys.part("throughput_rollup", "rows", { unit, topic, newest }),
    queryFn: async ({ signal }): Promise<BucketsRead> => {
      const buckets: Bucket[] = [];
      let query: Record<string, string | number> = { unit, topic, limit: BUCKETS };
      for (let page = 0; page < BUCKET_PAGES_MAX; page += 1) {
        const { data } = await request("get", "/v1/reports/throughput_rollup/rows", { query, signal });
        buckets.push(...data.items);
        if (data.next_cursor === null) return { buckets, isCut: false };
        query = { ...query, from: data.from, to: data.to, cursor: data.next_cursor };
      }
      return { buckets: wholeBuckets(buckets, true), isCut: true };
    },
  });

/** Requests a run that reports on the present. */
export async function startRun(job: string): Promise<ReportRun> {
  return (await request("post", "/v1/reports/{job}/runs", { path: { job }, body: {} })).data;
}

/** Sets the schedule of a job; null removes it, so that the scheduler's settings count again. */
export async function setSchedule(job: string, change: ScheduleChange | null): Promise<Report> {
  const path = { job };
  if (change === null) return (await request("delete", "/v1/reports/{job}/schedule", { path })).data;
  return (await request("put", "/v1/reports/{job}/schedule", { path, body: change })).data;
}

/** Returns whether an answer says that no run has succeeded yet. */
export function isWithoutRun(error: Error | null): boolean {
  return error instanceof ApiError && error.kind === "unknown-run";
}
