import { queryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { latestLag, type LagReport } from "@/api/lag";
import { request } from "@/api/request";
import { toCluster } from "@/models/cluster";
import { worstFirst } from "@/models/lag";
import { toRates } from "@/models/throughput";

const keys = makeKeys("overview");

// Together they cost the gateway a few milliseconds each time.
const CLUSTER_EVERY_MS = 5_000;
const REPORT_EVERY_MS = 30_000;
const RATES_WINDOW_MS = 60 * 60 * 1_000;
const ROWS_MAX = 1_000;
const CHANGES_SHOWN = 8;

export const clusterQuery = queryOptions({
  queryKey: keys.part("cluster", "now"),
  queryFn: async ({ signal }) => toCluster((await request("get", "/v1/cluster", { signal })).data),
  refetchInterval: CLUSTER_EVERY_MS,
});

/** The topics' rows of the latest lag report, the worst first; null if there was none yet. */
export const lagQuery = queryOptions({
  queryKey: keys.part("lag", "latest"),
  queryFn: async ({ signal }): Promise<LagReport | null> => {
    const report = await latestLag({ level: "topic" }, signal);
    return report === null ? null : { ...report, rows: worstFirst(report.rows) };
  },
  refetchInterval: REPORT_EVERY_MS,
});

export const ratesQuery = queryOptions({
  queryKey: keys.part("rates", "hour"),
  queryFn: async ({ signal }) => {
    const from = new Date(Date.now() - RATES_WINDOW_MS).toISOString();
    const query = { unit: "minute", from, limit: ROWS_MAX };
    const { data } = await request("get", "/v1/reports/throughput_rollup/rows", { query, signal });
    return toRates(data.items);
  },
  refetchInterval: REPORT_EVERY_MS,
});

export const changesQuery = queryOptions({
  queryKey: keys.part("changes", "latest"),
  queryFn: async ({ signal }) =>
    (await request("get", "/v1/audit", { query: { limit: CHANGES_SHOWN }, signal })).data.items,
  refetchInterval: REPORT_EVERY_MS,
});
