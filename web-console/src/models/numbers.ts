/**
 * Numbers and times as people read them. Every function takes null for an unknown value and returns null for it, so that
 * a caller can't show it as a number; `Value` (src/ui/value.tsx) shows null as "unknown".
 *
 * Counts of 64 bits come as strings and are formatted without a detour through floating point.
 */

/** Lengths of time and sizes have units, whose texts are in `i18n/`. */
export type Unit = (typeof TIMES)[number][0] | "ms" | (typeof SIZES)[number];

/** Returns a number with its unit, in the language of the reader. */
export type WithUnit = (unit: Unit, value: string) => string;

const TIMES = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
] as const;
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

// Making one takes longer than using it a hundred times. There are as many as there are kinds of numbers and languages.
const made = new Map<string, Intl.NumberFormat>();

function numberFormat(language: string, options: Intl.NumberFormatOptions = {}): Intl.NumberFormat {
  const key = `${language} ${options.style ?? ""} ${options.maximumFractionDigits ?? ""}`;
  const found = made.get(key) ?? new Intl.NumberFormat(language, options);
  made.set(key, found);
  return found;
}

const timeFormats = new Map<string, Intl.DateTimeFormat>();

function timeFormat(language: string): Intl.DateTimeFormat {
  const found =
    timeFormats.get(language) ?? new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
  timeFormats.set(language, found);
  return found;
}

type Count = number | string | bigint;

/** Returns a count with separators: 1,234,567. */
export function formatCount(count: Count | null | undefined, language: string): string | null {
  if (count === null || count === undefined) return null;
  const exact = typeof count === "string" ? integerOf(count) : count;
  return exact === null ? null : numberFormat(language).format(exact);
}

/** Returns a rate in messages per second with two or three significant digits. */
export function formatRate(perSecond: number | null | undefined, language: string): string | null {
  if (perSecond === null || perSecond === undefined) return null;
  const digits = perSecond >= 100 ? 0 : perSecond >= 10 ? 1 : 2;
  return numberFormat(language, { maximumFractionDigits: digits }).format(perSecond);
}

/** Returns a size with a binary unit: 1.5 MiB. */
export function formatBytes(
  bytes: number | string | null | undefined,
  language: string,
  withUnit: WithUnit,
): string | null {
  if (bytes === null || bytes === undefined) return null;
  let value = Number(bytes);
  let at = 0;
  while (Math.abs(value) >= 1024 && at < SIZES.length - 1) {
    value /= 1024;
    at += 1;
  }
  const digits = at === 0 || value >= 100 ? 0 : 1;
  return withUnit(SIZES[at] ?? "B", numberFormat(language, { maximumFractionDigits: digits }).format(value));
}

/** Returns a share from 0 to 1 in percent. */
export function formatShare(share: number | null | undefined, language: string): string | null {
  if (share === null || share === undefined) return null;
  return numberFormat(language, { style: "percent", maximumFractionDigits: share < 0.1 ? 1 : 0 }).format(share);
}

/** Returns a length of time with its two largest units: 3 min 20 s. */
export function formatDuration(
  seconds: number | null | undefined,
  language: string,
  withUnit: WithUnit,
): string | null {
  if (seconds === null || seconds === undefined) return null;
  const part = (unit: Unit, count: number) => withUnit(unit, numberFormat(language).format(count));
  if (seconds < 1) return seconds <= 0 ? part("s", 0) : part("ms", Math.round(seconds * 1000));
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [unit, size] of TIMES) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(part(unit, count));
  }
  return parts.slice(0, 2).join(" ");
}

/** Returns a time of the contract (ISO 8601, UTC) in the reader's time zone. */
export function formatTime(time: string | number | null | undefined, language: string): string | null {
  if (time === null || time === undefined) return null;
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return null;
  return timeFormat(language).format(date);
}

/** Returns how long ago a time was, in seconds; 0 for the future, since clocks differ a little. */
export function ageSeconds(time: string | number | null | undefined, nowMs: number): number | null {
  if (time === null || time === undefined) return null;
  const at = new Date(time).getTime();
  return Number.isNaN(at) ? null : Math.max(0, (nowMs - at) / 1000);
}

/** Returns how far ahead a time is, in seconds; negative once it is past. */
export function secondsUntil(time: string | number | null | undefined, nowMs: number): number | null {
  if (time === null || time === undefined) return null;
  const at = new Date(time).getTime();
  return Number.isNaN(at) ? null : (at - nowMs) / 1000;
}

/** Returns the number that a text of a form is; any other text as it is, so that the gateway refuses it by its field. */
export function numberOr(text: string): number | string {
  return /^\s*-?\d{1,15}(\.\d{1,9})?\s*$/.test(text) ? Number(text) : text;
}

/** Returns b − a for two 64-bit numbers; null if one of them is unknown. */
export function difference(a: string | null | undefined, b: string | null | undefined): bigint | null {
  const [first, second] = [integerOf(a ?? ""), integerOf(b ?? "")];
  return first === null || second === null ? null : second - first;
}

function integerOf(text: string): bigint | null {
  return /^-?\d+$/.test(text) ? BigInt(text) : null;
}
