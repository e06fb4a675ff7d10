import type { Schema } from "@/api/types";

export interface BrokerSummary {
  key: string;
  name: string;
  role: "master" | "slave";
  address: string;
  isReachable: boolean;
  detail: string | null;
  /** Whether it takes no messages because somebody drained it; null if it does not tell. */
  isDrained: boolean | null;
  /** Whether its store takes messages; null if it does not tell. */
  isWritable: boolean | null;
  /** Why the store takes no messages. */
  reason: string | null;
  diskShare: number | null;
  putRate: number | null;
  getRate: number | null;
  putP99Ms: number | null;
  putToday: number | null;
  gotToday: number | null;
  flushBehindBytes: number | null;
  dispatchBehindBytes: number | null;
  storeBytes: bigint | null;
  earliestStoredAt: string | null;
  bootedAt: string | null;
  version: string | null;
}

export interface ClusterSummary {
  metadata: "available" | "unavailable";
  brokers: BrokerSummary[];
  unreachable: string[];
  /** Messages per second of all masters; null if one of them did not answer. */
  putRate: number | null;
  /** The fullest disk; null if no broker tells. */
  diskShareMax: number | null;
}

/** Returns the cluster as the overview shows it. */
export function toCluster(cluster: Schema<"Cluster">): ClusterSummary {
  const brokers = cluster.brokers.map(toBroker);
  const masters = brokers.filter((broker) => broker.role === "master");
  const isWhole = masters.length > 0 && masters.every((broker) => broker.putRate !== null);
  const shares = brokers.flatMap((broker) => (broker.diskShare === null ? [] : [broker.diskShare]));
  return {
    metadata: cluster.metadata,
    brokers,
    unreachable: [
      ...cluster.name_servers.filter((server) => !server.reachable).map((server) => server.address),
      ...brokers.filter((broker) => !broker.isReachable).map((broker) => broker.key),
    ],
    putRate: isWhole ? masters.reduce((sum, broker) => sum + (broker.putRate ?? 0), 0) : null,
    diskShareMax: shares.length === 0 ? null : Math.max(...shares),
  };
}

function toBroker(broker: Schema<"Cluster">["brokers"][number]): BrokerSummary {
  const store = broker.store;
  const [first, end] = [store?.min_physical_offset ?? null, store?.max_physical_offset ?? null];
  return {
    key: `${broker.broker}:${broker.broker_id}`,
    name: broker.broker,
    role: broker.role,
    address: broker.address,
    isReachable: broker.reachable,
    detail: broker.detail ?? null,
    isDrained: broker.drained,
    isWritable: store?.writable ?? null,
    reason: store?.reason ?? null,
    diskShare: store?.disk_ratio ?? null,
    putRate: store?.put_tps ?? null,
    getRate: store?.get_tps ?? null,
    putP99Ms: store?.put_latency_p99_ms ?? null,
    putToday: store?.messages_put_today ?? null,
    gotToday: store?.messages_got_today ?? null,
    flushBehindBytes: store?.flush_behind_bytes ?? null,
    dispatchBehindBytes: store?.dispatch_behind_bytes ?? null,
    storeBytes: first === null || end === null ? null : BigInt(end) - BigInt(first),
    earliestStoredAt: store?.earliest_stored_at ?? null,
    bootedAt: store?.booted_at ?? null,
    version: broker.version,
  };
}

/** The state of a broker in one word, the worst first. */
export type BrokerState = "unreachable" | "refusing" | "drained" | "unknown" | "fine";

export function stateOf(broker: BrokerSummary): BrokerState {
  if (!broker.isReachable) return "unreachable";
  if (broker.isDrained === true) return "drained";
  if (broker.isWritable === false) return "refusing";
  return broker.isDrained === null || broker.isWritable === null ? "unknown" : "fine";
}

/** Returns whether another master takes messages, which producers could use instead of this broker. */
export function hasSubstitute(brokers: readonly BrokerSummary[], name: string): boolean {
  return brokers.some((broker) => broker.name !== name && broker.role === "master" && stateOf(broker) === "fine");
}
