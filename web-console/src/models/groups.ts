import type { Group, GroupChange, OffsetReset } from "@/api/groups";
import { severityOf, type LagRow } from "./lag";
import { numberOr } from "./numbers";

/** A group with its lag in the latest report, over all topics. Null is unknown. */
export interface GroupSummary {
  group: Group;
  /** The worst verdict of its topics; null if the report does not list the group. */
  verdict: string | null;
  cause: string | null;
  messages: number | null;
  seconds: number | null;
  /** Messages per second by which the backlog grows; negative while it drains. */
  trend: number | null;
  clients: number | null;
}

/** Joins groups with the topics' rows of a lag report. One unknown topic makes a sum unknown. */
export function summariesOf(groups: readonly Group[], rows: readonly LagRow[]): GroupSummary[] {
  const byGroup = new Map<string, LagRow[]>();
  for (const row of rows) {
    if (row.level !== "topic") continue;
    const found = byGroup.get(row.group);
    if (found === undefined) byGroup.set(row.group, [row]);
    else found.push(row);
  }
  return groups.map((group) => summaryOf(group, byGroup.get(group.group) ?? []));
}

function summaryOf(group: Group, rows: readonly LagRow[]): GroupSummary {
  const worst = rows.reduce<LagRow | null>(
    (found, row) => (found === null || severityOf(row.verdict) < severityOf(found.verdict) ? row : found),
    null,
  );
  const over = (valueOf: (row: LagRow) => number | null, join: (values: number[]) => number): number | null => {
    const values = rows.map(valueOf);
    const known = values.filter((value) => value !== null);
    return known.length === 0 || known.length < values.length ? null : join(known);
  };
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  const most = (values: number[]) => Math.max(...values);
  return {
    group,
    verdict: worst?.verdict ?? null,
    cause: worst?.cause ?? null,
    messages: over((row) => row.lag_messages, sum),
    seconds: over((row) => row.lag_seconds, most),
    trend: over(trendOf, sum),
    clients: over((row) => row.clients, most),
  };
}

/** Returns the messages per second by which a backlog grows; negative while it drains, null if unknown. */
export function trendOf(row: LagRow): number | null {
  return row.in_rate === null || row.out_rate === null ? null : row.in_rate - row.out_rate;
}

/** The settings of a group as a form edits them: every value is a text or a boolean. */
export interface GroupSettings {
  consume: boolean;
  from_min: boolean;
  broadcast: boolean;
  orderly: boolean;
  notify_changes: boolean;
  retry_max_times: string;
  retry_queues: string;
  consume_timeout_minutes: string;
  /** As the command line writes it: levels, 10s,1m,1h, or exponential:5s,2,2h. Empty if brokers have their own. */
  retry_policy: string;
}

export const SETTINGS = [
  "consume",
  "orderly",
  "from_min",
  "broadcast",
  "notify_changes",
  "retry_max_times",
  "retry_queues",
  "consume_timeout_minutes",
  "retry_policy",
] as const;
export type SettingName = (typeof SETTINGS)[number];

/** What the contract gives a new group. */
export const NEW_GROUP: GroupSettings = {
  consume: true,
  from_min: true,
  broadcast: true,
  orderly: false,
  notify_changes: true,
  retry_max_times: "16",
  retry_queues: "1",
  consume_timeout_minutes: "15",
  retry_policy: "",
};

type Policy = NonNullable<Group["retry_policy"]>;

export function toSettings(group: Group): GroupSettings {
  return {
    consume: group.consume,
    from_min: group.from_min,
    broadcast: group.broadcast,
    orderly: group.orderly,
    notify_changes: group.notify_changes,
    retry_max_times: String(group.retry_max_times),
    retry_queues: String(group.retry_queues),
    consume_timeout_minutes: String(group.consume_timeout_minutes),
    retry_policy: policyText(group.retry_policy),
  };
}

/**
 * Returns the body of a change that sets the named settings only. A text that is no number stays a text, so that the
 * gateway refuses it by its field. Throws RangeError for a policy that is none.
 */
export function toChange(settings: GroupSettings, names: readonly SettingName[]): GroupChange {
  return Object.fromEntries(
    names.map((name) => {
      const value = settings[name];
      if (name === "retry_policy") return [name, policyOf(settings.retry_policy)];
      return [name, typeof value === "boolean" ? value : numberOr(value)];
    }),
  ) as GroupChange;
}

/** Returns the options of `gantry group create` for the named settings. */
export function optionsOf(settings: GroupSettings, names: readonly SettingName[]): string[] {
  return names.flatMap((name) => {
    const value = settings[name];
    const option = name.replaceAll("_", "-");
    if (typeof value === "boolean") return [value ? `--${option}` : `--no-${option}`];
    return value.trim() === "" ? [] : [`--${option}`, value.trim()];
  });
}

const UNITS: [string, number][] = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
  ["ms", 1],
];

function durationText(ms: number): string {
  const [unit, size] = UNITS.find((each) => ms % each[1] === 0) ?? ["ms", 1];
  return `${ms / size}${unit}`;
}

function durationOf(text: string): number {
  const found = /^(\d{1,10})(ms|s|m|h|d)$/.exec(text.trim());
  const size = UNITS.find(([unit]) => unit === found?.[2])?.[1];
  if (found === null || size === undefined) throw new RangeError(text);
  return Number(found[1]) * size;
}

/** Returns a retry policy as the command line writes it; empty if there is none. */
export function policyText(policy: Policy | null): string {
  if (policy === null) return "";
  if (policy.kind === "levels") return "levels";
  if (policy.kind === "delays") return policy.delays_ms.map(durationText).join(",");
  // The contract's defaults hold for what is absent; the gateway always writes all of them.
  const { initial_ms = 5_000, multiplier = 2, max_ms = 7_200_000 } = policy;
  return `exponential:${durationText(initial_ms)},${multiplier},${durationText(max_ms)}`;
}

/** Reads a retry policy; null if the text is empty. Throws RangeError if it is none. */
export function policyOf(text: string): Policy | null {
  const given = text.trim();
  if (given === "") return null;
  if (given === "levels") return { kind: "levels" };
  if (!given.startsWith("exponential:")) return { kind: "delays", delays_ms: given.split(",").map(durationOf) };
  const [initial = "", multiplier = "", max = "", ...rest] = given.slice("exponential:".length).split(",");
  if (!/^\s*\d{1,3}\s*$/.test(multiplier) || rest.length > 0) throw new RangeError(text);
  return {
    kind: "exponential",
    initial_ms: durationOf(initial),
    multiplier: Number(multiplier),
    max_ms: durationOf(max),
  };
}

/** Returns whether a text is a retry policy. */
export function isPolicy(text: string): boolean {
  try {
    policyOf(text);
    return true;
  } catch {
    return false;
  }
}

/** Returns the body of a reset to a place; null while the place is incomplete. `at` is a local time of an input field. */
export function placeOf(kind: string, at: string): "earliest" | "latest" | string | null {
  if (kind !== "time") return kind;
  const time = new Date(at);
  return at === "" || Number.isNaN(time.getTime()) ? null : time.toISOString();
}

export interface Moved {
  /** Messages that are consumed again, and messages that are skipped. */
  again: bigint;
  skipped: bigint;
  /** Queues of which the number of messages is unknown. */
  unknown: number;
  /** Queues that have not moved, or of which it is unknown. */
  failed: number;
}

/** Returns whether a queue did not move, or whether it is unknown that it did. */
export function isFailed({ outcome }: Pick<OffsetReset["items"][number], "outcome">): boolean {
  return outcome === "not_reset" || outcome === "unknown";
}

/** Returns what a reset does, or has done, in numbers. */
export function movedBy(items: OffsetReset["items"]): Moved {
  const moved: Moved = { again: 0n, skipped: 0n, unknown: 0, failed: 0 };
  for (const item of items) {
    if (isFailed(item)) moved.failed += 1;
    else if (item.messages === null) moved.unknown += 1;
    else if (item.messages.startsWith("-")) moved.skipped -= BigInt(item.messages);
    else moved.again += BigInt(item.messages);
  }
  return moved;
}
