/** Dead letters and their redrives, as the console shows them. */
import type { Schema } from "@/api/types";
import { gantryCommand } from "./commands";
import { given, optionsOf } from "./filters";
import { toFilterTime } from "./times";

export type Letter = Schema<"DeadLetter">;

export const RATE_DEFAULT = 100;
export const RATE_MAX = 1_000;

/** Filters of letters, as texts of an address; empty for any. */
export interface LetterFilter {
  topic: string;
  tag: string;
  from: string;
  to: string;
}

export const ANY_LETTER: LetterFilter = { topic: "", tag: "", from: "", to: "" };

/** Returns the query of a filter. Times are of the reader's zone until here. */
export function letterQuery({ topic, tag, from, to }: LetterFilter): Record<string, string> {
  return given({ topic, tag, from: toFilterTime(from), to: toFilterTime(to) });
}

/** The letters that a redrive sends again: one by its id, or all that match a query. */
export type Selection = { id: string } | { query: Record<string, string> };

export interface Redrive {
  selection: Selection;
  /** Whether every group of the first topic gets the messages, and not only this group. */
  toOrigin: boolean;
  ratePerS: number;
}

/** Returns the body of a redrive. */
export function redriveBody({ selection, toOrigin, ratePerS }: Redrive, dryRun: boolean): Record<string, unknown> {
  return {
    ...("id" in selection ? { message_ids: [selection.id] } : { filter: selection.query }),
    to: toOrigin ? "origin" : "retry",
    rate_per_s: ratePerS,
    dry_run: dryRun,
  };
}

/** Returns the same redrive as a command. */
export function redriveCommand(group: string, { selection, toOrigin, ratePerS }: Redrive): string {
  const options = "id" in selection ? [selection.id] : optionsOf(selection.query);
  return gantryCommand(
    "dlq",
    "redrive",
    group,
    ...(options.length === 0 ? ["--all"] : options),
    ...(toOrigin ? ["--origin"] : []),
    ...(ratePerS === RATE_DEFAULT ? [] : ["--rate", String(ratePerS)]),
  );
}
