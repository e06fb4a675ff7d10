/** Messages that wait for their time, as the console shows them. */
import type { Schema } from "@/api/types";
import { gantryCommand } from "./commands";
import { given } from "./filters";
import { toFilterTime, toInstant } from "./times";

export type Waiting = Schema<"ScheduledMessage">;

/** Filters of what waits, as texts of an address; empty for any. */
export interface DueFilter {
  from: string;
  to: string;
}

export const ANY_TIME: DueFilter = { from: "", to: "" };

/** The longest delay, in days. */
export const DELAY_DAYS_MAX = 40;

const UNITS_MS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns the query of a filter. Times are of the reader's zone until here. */
export function dueQuery({ from, to }: DueFilter): Record<string, string> {
  return given({ from: toFilterTime(from), to: toFilterTime(to) });
}

/** A new time as a form edits it: a delay from now on, or a time of the reader's zone. */
export interface TimeDraft {
  by: "delay" | "time";
  delay: string;
  time: string;
}

/** A new time as the contract takes it. */
export type NewTime = { delay: string } | { deliver_at: string };

/** A new time that is valid, with the time at which it comes; or why it is not valid. */
export type CheckedTime = { body: NewTime; atMs: number } | { problem: "delay" | "delayMax" | "time" };

/** Returns what a draft means at a time. */
export function checkTime({ by, delay, time }: TimeDraft, nowMs: number): CheckedTime {
  if (by === "time") {
    const instant = toInstant(time);
    return instant === "" ? { problem: "time" } : { body: { deliver_at: instant }, atMs: Date.parse(instant) };
  }
  const text = delay.trim();
  const [, count, unit = ""] = /^(\d{1,6})(ms|s|m|h|d)$/.exec(text) ?? [];
  const unitMs = UNITS_MS[unit];
  if (count === undefined || unitMs === undefined) return { problem: "delay" };
  const ms = Number(count) * unitMs;
  return ms > DELAY_DAYS_MAX * 86_400_000 ? { problem: "delayMax" } : { body: { delay: text }, atMs: nowMs + ms };
}

/** Returns a new time as a command. */
export function rescheduleCommand(topic: string, handle: string, body: NewTime): string {
  const option = "delay" in body ? ["--delay", body.delay] : ["--deliver-at", body.deliver_at];
  return gantryCommand("message", "reschedule", topic, handle, ...option);
}

/** What became of messages by their handles: their new place, or null for one that waits no more. */
export type Moves = ReadonlyMap<string, Pick<Waiting, "handle" | "deliver_at"> | null>;

/**
 * Returns what waits after some moves, by due time. Brokers list a change about a second later; until then the console
 * shows what they have answered to it.
 */
export function withMoves(listed: readonly Waiting[], moves: Moves): Waiting[] {
  const handles = new Set(listed.map((message) => message.handle));
  return listed
    .flatMap((message) => {
      let shown = message;
      for (let left = moves.size; left > 0 && moves.has(shown.handle); left -= 1) {
        const move = moves.get(shown.handle) ?? null;
        if (move === null || handles.has(move.handle)) return [];
        shown = { ...shown, ...move };
      }
      return [shown];
    })
    .sort((a, b) => a.deliver_at.localeCompare(b.deliver_at));
}
