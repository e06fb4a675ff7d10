import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { latestLag } from "@/api/lag";
import { request } from "@/api/request";
import { getTopic, listQueues, listTopics, topicKeys } from "@/api/topics";
import { worstFirst } from "@/models/lag";
import { toRates } from "@/models/throughput";

const DETAIL_EVERY_MS = 5_000;
const REPORT_EVERY_MS = 30_000;
const RATES_WINDOW_MS = 3 * 60 * 60 * 1_000;
const ROWS_MAX = 1_000;

/** All topics, in pages of 1,000 that are loaded one after the other. */
export const topicsQuery = (system: boolean) =>
  infiniteQueryOptions({
    queryKey: topicKeys.list({ system }),
    queryFn: ({ pageParam, signal }) => listTopics(system, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    staleTime: 30_000,
  });

export const topicQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.detail(topic),
    queryFn: async ({ signal }) => {
      const { data, etag } = await getTopic(topic, signal);
      return { topic: data, etag, metadata: data.metadata };
    },
    refetchInterval: REPORT_EVERY_MS,
  });

export const queuesQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.part(topic, "queues"),
    queryFn: ({ signal }) => listQueues(topic, signal),
    refetchInterval: DETAIL_EVERY_MS,
  });

export const producersQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.part(topic, "producers"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/topics/{topic}/producers", { path: { topic }, signal })).data,
    refetchInterval: DETAIL_EVERY_MS,
  });

/** The groups that consume a topic, by the latest lag report; null if there was none yet. */
export const consumersQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.part(topic, "consumers"),
    queryFn: async ({ signal }) => {
      const report = await latestLag({ topic, level: "topic" }, signal);
      return report === null ? null : { asOf: report.asOf, rows: worstFirst(report.rows) };
    },
    refetchInterval: REPORT_EVERY_MS,
  });

export const ratesQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.part(topic, "rates"),
    queryFn: async ({ signal }) => {
      const from = new Date(Date.now() - RATES_WINDOW_MS).toISOString();
      const query = { topic, unit: "minute", from, limit: ROWS_MAX };
      return toRates((await request("get", "/v1/reports/throughput_rollup/rows", { query, signal })).data.items);
    },
    refetchInterval: REPORT_EVERY_MS,
  });

export const trafficQuery = (topic: string) =>
  queryOptions({
    queryKey: topicKeys.part(topic, "traffic"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/topics/{topic}/statistics", { path: { topic }, signal })).data,
    refetchInterval: DETAIL_EVERY_MS,
  });
