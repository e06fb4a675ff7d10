import { queryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import type { Schema } from "@/api/types";
import { toCluster } from "@/models/cluster";

const EVERY_MS = 5_000;

export const keys = makeKeys("brokers");

export const brokersQuery = queryOptions({
  queryKey: keys.list(),
  queryFn: async ({ signal }) => toCluster((await request("get", "/v1/cluster", { signal })).data),
  refetchInterval: EVERY_MS,
});

/** The settings of a broker. They are read when the page opens and after each change, not in between. */
export const settingsQuery = (broker: string) =>
  queryOptions({
    queryKey: keys.part(broker, "settings"),
    queryFn: async ({ signal }) =>
      (await request("get", "/v1/brokers/{broker}/settings", { path: { broker }, signal })).data.items,
    refetchOnWindowFocus: false,
  });

/** Changes settings of a broker, all or none. */
export async function changeSettings(broker: string, body: Schema<"BrokerSettingsRequest">) {
  return (await request("put", "/v1/brokers/{broker}/settings", { path: { broker }, body })).data.items;
}

/** Lets a broker take no more messages, or takes that back. */
export async function setDrained(broker: string, isDrained: boolean): Promise<Schema<"Drained">> {
  const path = { broker };
  if (isDrained) return (await request("post", "/v1/brokers/{broker}:drain", { path })).data;
  return (await request("post", "/v1/brokers/{broker}:undrain", { path })).data;
}
