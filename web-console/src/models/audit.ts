/** Entries of the audit trail, as the console shows them. */
import type { Schema } from "@/api/types";
import { given } from "./filters";
import { toFilterTime } from "./times";

export type AuditEntry = Schema<"AuditEntry">;

/** Filters of the trail, as texts of an address; empty for any. */
export interface AuditFilter {
  kind: string;
  name: string;
  actor: string;
  action: string;
  from: string;
  to: string;
}

export const KINDS = [
  "topic",
  "group",
  "key",
  "user",
  "report",
  "objective",
  "webhook",
  "job",
  "transaction",
  "producer_group",
  "broker",
] as const;

/** Returns the query of a filter. A name counts only with a kind; times are of the reader's zone until here. */
export function toQuery(filter: AuditFilter): Record<string, string> {
  const { kind, name, actor, action, from, to } = filter;
  return given({
    kind,
    name: kind === "" ? "" : name,
    actor,
    action,
    from: toFilterTime(from),
    to: toFilterTime(to),
  });
}

export interface Change {
  /** The name of a field, with dots for nesting. */
  field: string;
  /** As JSON; null where the field is absent. */
  before: string | null;
  after: string | null;
}

/** Returns the fields that a change added, removed or changed, in the order of their names. */
export function changesOf(entry: AuditEntry): Change[] {
  const before = fieldsOf(entry.before);
  const after = fieldsOf(entry.after);
  return [...new Set([...before.keys(), ...after.keys()])]
    .sort()
    .map((field) => ({ field, before: before.get(field) ?? null, after: after.get(field) ?? null }))
    .filter((change) => change.before !== change.after);
}

/** Returns the names of the changed fields in a few words, for a list. */
export function changedFields(entry: AuditEntry): string {
  return changesOf(entry)
    .map(({ field }) => field)
    .join(", ");
}

function fieldsOf(value: unknown, prefix = ""): Map<string, string> {
  if (value === null || value === undefined) return new Map();
  return new Map(
    Object.entries(value as Record<string, unknown>).flatMap(([name, each]): [string, string][] =>
      isNested(each) ? [...fieldsOf(each, `${prefix}${name}.`)] : [[prefix + name, JSON.stringify(each)]],
    ),
  );
}

function isNested(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length > 0;
}
