import { infiniteQueryOptions, queryOptions, skipToken, type QueryClient } from "@tanstack/react-query";
import { getGroup, groupKeys, listGroups, type OffsetReset } from "@/api/groups";
import { latestLag } from "@/api/lag";
import { request } from "@/api/request";
import { getObjective, listObjectives } from "@/api/objectives";
import { worstFirst } from "@/models/lag";

const DETAIL_EVERY_MS = 5_000;
const REPORT_EVERY_MS = 30_000;
const REPORT_PAGES_MAX = 10;
const HISTORY_MS = 6 * 60 * 60 * 1_000;
const SUBSCRIPTIONS_SHOWN = 1_000;

/** All groups, in pages of 1,000 that are loaded one after the other. */
export const groupsQuery = (system: boolean) =>
  infiniteQueryOptions({
    queryKey: groupKeys.list({ system }),
    queryFn: ({ pageParam, signal }) => listGroups(system, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    refetchInterval: REPORT_EVERY_MS,
  });

/** The topics' rows of the latest lag report, of all groups; null if there was none yet. */
export const lagQuery = queryOptions({
  queryKey: groupKeys.list({ of: "lag" }),
  queryFn: ({ signal }) => latestLag({ level: "topic" }, signal, REPORT_PAGES_MAX),
  refetchInterval: REPORT_EVERY_MS,
});

export const groupQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.detail(group),
    queryFn: async ({ signal }) => {
      const { data, etag } = await getGroup(group, signal);
      return { group: data, etag, metadata: data.metadata };
    },
    refetchInterval: REPORT_EVERY_MS,
  });

/** A group's rows of the latest lag report: topics, the worst first, and queues. Null if there was no report yet. */
export const groupLagQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "lag"),
    queryFn: async ({ signal }) => {
      const report = await latestLag({ group }, signal, REPORT_PAGES_MAX);
      if (report === null) return null;
      return {
        asOf: report.asOf,
        topics: worstFirst(report.rows),
        queues: report.rows.filter((row) => row.level === "queue"),
      };
    },
    refetchInterval: REPORT_EVERY_MS,
  });

export const historyQuery = (group: string, topic: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "history", { topic }),
    queryFn: async ({ signal }) => {
      const from = new Date(Date.now() - HISTORY_MS).toISOString();
      return (await request("get", "/v1/reports/lag_report/history", { query: { group, topic, from }, signal })).data
        .items;
    },
    refetchInterval: REPORT_EVERY_MS,
  });

export const offsetsQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "offsets"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/groups/{group}/offsets", { path: { group }, signal })).data.items,
    refetchInterval: DETAIL_EVERY_MS,
  });

export const clientsQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "clients"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/groups/{group}/clients", { path: { group }, signal })).data.items,
    refetchInterval: DETAIL_EVERY_MS,
  });

export const consistencyQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "consistency"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/groups/{group}/consistency", { path: { group }, signal })).data,
    refetchInterval: DETAIL_EVERY_MS,
  });

export const subscriptionsQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "subscriptions"),
    queryFn: async ({ signal }) => {
      const query = { limit: SUBSCRIPTIONS_SHOWN };
      return (await request("get", "/v1/groups/{group}/subscriptions", { path: { group }, query, signal })).data;
    },
    refetchInterval: DETAIL_EVERY_MS,
  });

export const objectivesQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "objectives"),
    queryFn: ({ signal }) => listObjectives(group, signal),
    refetchInterval: REPORT_EVERY_MS,
  });

/** One objective with its version. It is read anew for each form, so that a change begins with what is true now. */
export const objectiveQuery = (group: string, topic: string | null) =>
  queryOptions({
    queryKey: groupKeys.part(group, "objective", { topic }),
    queryFn: async () => {
      const { data, etag } = await getObjective(group, topic);
      return { objective: data, etag: etag ?? "" };
    },
    staleTime: 0,
    gcTime: 0,
  });

export const trafficQuery = (group: string) =>
  queryOptions({
    queryKey: groupKeys.part(group, "traffic"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/groups/{group}/statistics", { path: { group }, signal })).data,
    refetchInterval: DETAIL_EVERY_MS,
  });

interface LastMove {
  moved: OffsetReset;
  /** Whether it was taken back. */
  isUndone: boolean;
}

/** The last reset or clone that was made here, which only its answer tells. It is kept when the reader leaves the page. */
export const lastMoveQuery = (group: string) =>
  queryOptions<LastMove | null>({
    queryKey: groupKeys.part(group, "lastMove"),
    queryFn: skipToken,
    initialData: null,
    staleTime: Infinity,
    gcTime: Infinity,
  });

export function keepLastMove(client: QueryClient, group: string, move: LastMove): void {
  client.setQueryData<LastMove>(groupKeys.part(group, "lastMove"), move);
}
