/** Counted messages of a topic or a group over the last minute, hour and day. */
import type { Schema } from "@/api/types";

export type Statistics = Schema<"Statistics">;
export type Flow = Schema<"Traffic">;

const KINDS = ["stored", "delivered", "sent_back", "dead"] as const;

export interface FlowRows {
  rows: Flow[];
  /** Whether each row is of one broker. Sums are not there if a broker does not answer. */
  isByBroker: boolean;
}

/** Returns the rows to show, by topic, group and kind: sums over all brokers, or those of each broker. */
export function flowsOf(found: Statistics, isByBroker: boolean): FlowRows {
  const rows = isByBroker || found.sums === null ? found.items : found.sums;
  const keyOf = (flow: Flow) => [flow.topic, flow.group ?? "", KINDS.indexOf(flow.kind), flow.broker ?? ""].join("\0");
  const sorted = [...rows].sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
  return { rows: sorted, isByBroker: isByBroker || found.sums === null };
}
