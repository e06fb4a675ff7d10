import { expect, test } from "vitest";
import type { Schema } from "@/api/types";
import { toCluster } from "./cluster";
import { colorOf, isBad, worstFirst, type LagRow } from "./lag";
import { toRates } from "./throughput";

const broker = (name: string, store: object | null, id = 0) =>
  ({
    cluster: "C",
    broker: name,
    broker_id: id,
    role: id === 0 ? "master" : "slave",
    address: "h:1",
    reachable: store !== null,
    detail: store === null ? "timed out" : null,
    version: null,
    store,
  }) as Schema<"Cluster">["brokers"][number];

const cluster = (...brokers: Schema<"Cluster">["brokers"]): Schema<"Cluster"> => ({
  name_servers: [{ address: "n:9876", reachable: true }],
  brokers,
  metadata: "available",
});

const lag = (verdict: string, seconds: number | null, level: "topic" | "queue" = "topic") =>
  ({ verdict, lag_seconds: seconds, lag_messages: null, level }) as LagRow;

test("the rate of the cluster is unknown if one master does not answer", () => {
  const whole = toCluster(cluster(broker("a", { put_tps: 2.5, disk_ratio: 0.5 }), broker("b", { put_tps: 0 })));
  expect(whole).toMatchObject({ putRate: 2.5, diskShareMax: 0.5, unreachable: [] });
  const part = toCluster(cluster(broker("a", { put_tps: 2.5 }), broker("b", null), broker("b", { put_tps: null }, 1)));
  expect(part).toMatchObject({ putRate: null, diskShareMax: null, unreachable: ["b:0"] });
  expect(toCluster(cluster()).putRate).toBeNull();
});

test("sizes of stores keep 64 bits", () => {
  const found = toCluster(cluster(broker("a", { min_physical_offset: "1", max_physical_offset: "9007199254740995" })));
  expect(found.brokers[0]?.storeBytes).toBe(9007199254740994n);
});

test("the worst group comes first, and unknown lag last", () => {
  const rows = [
    lag("OK", 5),
    lag("LAGGING", null),
    lag("LAGGING", 9),
    lag("NEW_WORD", 1),
    lag("STALLED", 1),
    lag("STALLED", 1, "queue"),
  ];
  expect(worstFirst(rows).map((row) => [row.verdict, row.lag_seconds])).toEqual([
    ["STALLED", 1],
    ["LAGGING", 9],
    ["LAGGING", null],
    ["NEW_WORD", 1],
    ["OK", 5],
  ]);
  expect(["OK", "STALLED", "LAGGING", "NEW_WORD"].map(colorOf)).toEqual(["green", "red", "orange", "gray"]);
  expect(["OK", "PAUSED", "LAGGING"].map(isBad)).toEqual([false, false, true]);
});

test("rates come from covered seconds, and a bucket without samples is unknown", () => {
  const bucket = (at: string, group: string | null, messages: number | null, covered: number | null) => ({
    bucket_at: at,
    topic: "T",
    group,
    messages,
    covered_s: covered,
    rate_max: null,
    lag_messages: null,
  });
  expect(
    toRates([
      bucket("2026-01-01T00:01:00Z", null, null, null),
      bucket("2026-01-01T00:00:00Z", null, 60, 30),
      bucket("2026-01-01T00:00:00Z", "G", 30, 30),
      bucket("2026-01-01T00:00:00Z", null, 60, 60),
    ]),
  ).toEqual([
    { at: "2026-01-01T00:00:00Z", stored: 3, consumed: 1 },
    { at: "2026-01-01T00:01:00Z", stored: null, consumed: null },
  ]);
  // One of two brokers was looked at for five seconds only.
  const partly = { ...bucket("2026-01-01T00:00:00Z", null, 1_950, 5), rate_max: 60 };
  expect(toRates([partly])).toEqual([{ at: "2026-01-01T00:00:00Z", stored: 60, consumed: null }]);
});
